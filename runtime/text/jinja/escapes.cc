// The escapes of a string literal.
#include <charconv>

#include "runtime/base/utf8.h"
#include "runtime/text/jinja/lexer.h"

namespace headrace::jinja {

namespace {

constexpr std::string_view kLetters = "abfnrtv\\'\"", kMeanings = "\a\b\f\n\r\t\v\\'\"";

// The number of `digits` digits at `at`; false if they are not there or are no character.
bool code_point(std::string_view text, size_t at, size_t digits, char32_t* out) {
  uint32_t number = 0;
  if (at + digits > text.size()) return false;
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + digits, number, 16);
  if (error != std::errc() || end != text.data() + at + digits) return false;
  if (number > 0x10FFFF || (number >= 0xD800 && number <= 0xDFFF)) return false;
  *out = number;
  return true;
}

size_t octal(std::string_view text, size_t at, char32_t* out) {
  size_t length = 0;
  for (*out = 0; length < 3 && at + length < text.size() && text[at + length] >= '0' && text[at + length] <= '7';
       ++length)
    *out = *out * 8 + static_cast<char32_t>(text[at + length] - '0');
  return length;
}

}  // namespace

bool unescape(std::string_view text, std::string* out) {
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\\' || at + 1 == text.size()) {
      out->push_back(text[at]);
      continue;
    }
    const char c = text[++at];
    const size_t letter = kLetters.find(c);
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char32_t character = 0;
    if (c == '\n') continue;  // a line that goes on
    if (letter != std::string_view::npos) {
      out->push_back(kMeanings[letter]);
    } else if (digits > 0) {
      if (!code_point(text, at + 1, digits, &character)) return false;
      append_code_point(character, out);
      at += digits;
    } else if (const size_t length = octal(text, at, &character); length > 0) {
      append_code_point(character, out);
      at += length - 1;
    } else {
      out->push_back('\\');
      out->push_back(c);
    }
  }
  return true;
}

}  // namespace headrace::jinja
