#include "tests/layering/types.h"

#include <cctype>
#include <map>
#include <optional>
#include <utility>

namespace headrace::layering {
namespace {

struct Token {
  std::string text;  // a name, or one character
  int line = 1;
};

bool is_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Where the literal that begins at `at` ends. REQUIRES: text[at] is a quote.
size_t literal_end(std::string_view text, size_t at) {
  for (size_t i = at + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == text[at] || text[i] == '\n') {
      return i + 1;
    }
  }
  return text.size();
}

// Without preprocessor lines and literals. A digit separator is part of its number.
std::vector<Token> tokens_of(std::string_view source) {
  const std::string text = without_comments(source);
  std::vector<Token> out;
  int line = 1;
  bool line_begins = true;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '\n') {
      ++line, ++i, line_begins = true;
    } else if (std::isspace(static_cast<unsigned char>(c)) != 0) {
      ++i;
    } else if (c == '#' && line_begins) {
      for (; i < text.size() && text[i] != '\n'; ++i) {
        if (text[i] == '\\' && i + 1 < text.size() && text[i + 1] == '\n') ++i, ++line;
      }
    } else if (c == '"' || c == '\'') {
      i = literal_end(text, i), line_begins = false;
    } else if (is_name(c)) {
      const size_t begin = i;
      while (i < text.size() && (is_name(text[i]) || (text[i] == '\'' && std::isdigit(c) != 0))) ++i;
      out.push_back({text.substr(begin, i - begin), line}), line_begins = false;
    } else {
      out.push_back({std::string(1, c), line}), ++i, line_begins = false;
    }
  }
  return out;
}

// A walk over a file's tokens: which namespace it is in, and what is defined there.
class Reader {
 public:
  explicit Reader(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  std::vector<TypeDefinition> read() {
    while (at_ < tokens_.size()) statement();
    return std::move(found_);
  }

 private:
  bool is(size_t i, std::string_view text) const { return i < tokens_.size() && tokens_[i].text == text; }
  bool name_at(size_t i) const { return i < tokens_.size() && is_name(tokens_[i].text[0]); }

  void statement() {
    if (is(at_, "}")) {
      if (!spaces_.empty()) spaces_.pop_back();
      ++at_;
    } else if (is(at_, "namespace") || (is(at_, "inline") && is(at_ + 1, "namespace"))) {
      enter_namespace();
    } else if (is(at_, "extern") && is(at_ + 1, "{")) {  // extern "C": the literal is left out
      spaces_.push_back({}), at_ += 2;
    } else {
      declaration();
    }
  }

  void enter_namespace() {
    at_ += is(at_, "inline") ? 2 : 1;
    std::string name;
    for (; at_ < tokens_.size() && !is(at_, "{") && !is(at_, ";"); ++at_) {
      if (is(at_, "=")) return skip_to_end();  // an alias
      name += tokens_[at_].text;
    }
    spaces_.push_back({name, name.empty()});
    ++at_;
  }

  // From here to its end, with all braces in it: "struct X { ... };", "using X = ...;", a function with its body.
  void declaration() {
    size_t i = at_;
    if (is(i, "template")) i = after_angles(i + 1);
    if (is(i, "requires")) return skip_to_end();
    if (is(i, "using") && name_at(i + 1) && is(i + 2, "=")) {
      add(i + 1);
    } else if (is(i, "typedef")) {
      return skip_to_end();
    } else if (is(i, "class") || is(i, "struct") || is(i, "union") || is(i, "enum")) {
      type(i);
    }
    skip_to_end();
  }

  // At "class" and the like: a definition has a brace before the end, and no parameter list.
  void type(size_t i) {
    ++i;
    if (is(i, "class") || is(i, "struct")) ++i;  // enum class
    while (is(i, "[") || is(i, "alignas")) i = is(i, "[") ? after(i, "[", "]") : after(i + 1, "(", ")");
    if (!name_at(i)) return;
    const size_t name = i++;
    if (name_at(i) && !is(i, "final")) return;  // "struct stat status = {}": a variable
    if (is(i, "final")) ++i;
    if (is(i, ":") && !is(i + 1, ":")) {  // bases, or an enum's type
      while (i < tokens_.size() && !is(i, "{") && !is(i, ";")) ++i;
    }
    if (is(i, "{")) add(name);
  }

  size_t after_angles(size_t i) const {
    for (int depth = 0; i < tokens_.size(); ++i) {
      if (is(i, "(")) i = after(i, "(", ")") - 1;  // "(1 > 0)"
      depth += is(i, "<") ? 1 : is(i, ">") ? -1 : 0;
      if (depth == 0) return i + 1;
    }
    return i;
  }
  size_t after(size_t i, std::string_view open, std::string_view close) const {
    for (int depth = 0; i < tokens_.size(); ++i) {
      depth += is(i, open) ? 1 : is(i, close) ? -1 : 0;
      if (depth == 0) return i + 1;
    }
    return i;
  }

  // Past the ';' or the body that ends the declaration. A body ends one unless a ';' or more of it follows, as after a
  // class or an initializer.
  void skip_to_end() {
    const bool with_semicolon = is(at_, "using") || is(at_, "typedef") || is(at_, "namespace");
    bool type = false, parameters = false;
    for (; at_ < tokens_.size(); ++at_) {
      if (is(at_, "class") || is(at_, "struct") || is(at_, "union") || is(at_, "enum")) type = true;
      if (is(at_, "=")) type = true;  // what is in braces is a value
      if (is(at_, "(")) {
        at_ = after(at_, "(", ")") - 1, parameters = true;
      } else if (is(at_, ";")) {
        ++at_;
        return;
      } else if (is(at_, "{")) {
        at_ = after(at_, "{", "}") - 1;
        if (is(at_ + 1, ";") || is(at_ + 1, ",") || with_semicolon || (type && !parameters)) continue;
        if (is(at_ + 1, "{") || is(at_ + 1, "(")) continue;
        ++at_;
        return;
      } else if (is(at_, "}")) {
        return;  // of the namespace
      }
    }
  }

  void add(size_t name) {
    std::string path;
    for (const Space& space : spaces_) {
      if (space.anonymous) return;
      if (!space.name.empty()) path += space.name + "::";
    }
    found_.push_back({path + tokens_[name].text, tokens_[name].line});
  }

  struct Space {
    std::string name;
    bool anonymous = false;
  };

  const std::vector<Token> tokens_;
  size_t at_ = 0;
  std::vector<Space> spaces_;
  std::vector<TypeDefinition> found_;
};

}  // namespace

std::vector<TypeDefinition> defined_types(std::string_view source) { return Reader(tokens_of(source)).read(); }

std::vector<std::string> types_defined_twice(const std::vector<Source>& sources) {
  std::map<std::string, std::string> first;  // name -> "file:line"
  std::vector<std::string> twice;
  for (const Source& source : sources) {
    for (const TypeDefinition& type : defined_types(source.text)) {
      if (type.name.rfind("headrace::", 0) != 0) continue;
      const std::string at = source.path + ":" + std::to_string(type.line);
      const auto [known, is_new] = first.emplace(type.name, at);
      const bool same_file = known->second.rfind(source.path + ":", 0) == 0;  // under #if and #else
      if (!is_new && !same_file) twice.push_back(at + ": " + type.name + " is defined in " + known->second + " too");
    }
  }
  return twice;
}

}  // namespace headrace::layering
