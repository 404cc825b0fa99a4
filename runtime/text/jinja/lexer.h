// A template's source as tokens: text outside its tags, with white space control applied as transformers sets jinja2 up
// (trim_blocks and lstrip_blocks), and names, constants and operators inside them. A pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

enum class TokenKind : uint8_t {
  kText,
  kVariableBegin,  // {{
  kVariableEnd,    // }}
  kBlockBegin,     // {%
  kBlockEnd,       // %}
  kName,
  kString,
  kNumber,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind;
  int line;
  std::string text;  // of a string: unescaped
  Value number;
};

// The last token is kEnd. Throws Error(kBadInput) at "name:line".
std::vector<Token> tokens_of(std::string_view source, const std::string& name);

// Appends a string literal's text without its escapes; false if one names no character.
bool unescape(std::string_view text, std::string* out);

}  // namespace headrace::jinja
