#include "runtime/text/jinja_strings.h"

namespace headrace {

namespace {

// Reads the literal whose opening quote is source[at]; returns the offset after the closing one.
size_t read_literal(std::string_view source, size_t at, std::string* out) {
  const char quote = source[at++];
  for (; at < source.size() && source[at] != quote; ++at) {
    if (source[at] != '\\' || at + 1 == source.size()) {
      out->push_back(source[at]);
      continue;
    }
    const char escaped = source[++at];
    out->push_back(escaped == 'n' ? '\n' : escaped == 't' ? '\t' : escaped == 'r' ? '\r' : escaped);
  }
  return at < source.size() ? at + 1 : at;
}

// Reads a tag's literals; `at` is after its opening "{{" or "{%".
size_t read_tag(std::string_view source, size_t at, char close, std::vector<std::string>* out) {
  while (at < source.size()) {
    if (source[at] == '\'' || source[at] == '"') {
      std::string literal;
      at = read_literal(source, at, &literal);
      out->push_back(std::move(literal));
    } else if (source[at] == close && at + 1 < source.size() && source[at + 1] == '}') {
      return at + 2;
    } else {
      ++at;
    }
  }
  return at;
}

}  // namespace

std::vector<std::string> jinja_strings(std::string_view source) {
  std::vector<std::string> out;
  std::string text;
  for (size_t at = 0; at < source.size();) {
    const char next = source[at] == '{' && at + 1 < source.size() ? source[at + 1] : '\0';
    if (next != '{' && next != '%' && next != '#') {
      text.push_back(source[at++]);
      continue;
    }
    if (!text.empty()) out.push_back(std::move(text));
    text.clear();
    if (next == '#') {
      const size_t end = source.find("#}", at + 2);
      at = end == std::string_view::npos ? source.size() : end + 2;
    } else {
      at = read_tag(source, at + 2, next == '{' ? '}' : '%', &out);
    }
  }
  if (!text.empty()) out.push_back(std::move(text));
  return out;
}

}  // namespace headrace
