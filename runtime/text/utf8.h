// UTF-8 as the tokenizer needs it: code points, replacement of what is not UTF-8, a decoder that can be fed in parts.
// Pure functions and a plain value; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the first bytes of `text` are. `length` counts the bytes that belong together: a whole character, or the
// longest beginning of one (the Unicode standard's "maximal subpart", which becomes one U+FFFD).
struct Utf8Unit {
  enum Kind { kCharacter, kInvalid, kTruncated } kind;  // truncated: the text ends before the character does
  size_t length;
  char32_t code_point;  // of a kCharacter
};
Utf8Unit next_utf8(std::string_view text);  // text is not empty

bool is_utf8(std::string_view text);
bool is_white_space(char32_t c);  // Unicode's White_Space
// Appends `text`; every maximal invalid part becomes U+FFFD, as the reference reads a file with errors="replace".
void append_valid_utf8(std::string_view text, std::string* out);
void append_code_point(char32_t code_point, std::string* out);
// Bytes of the character that begins with `lead`, which must be the first byte of valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Bytes in, valid UTF-8 out, whatever way the bytes are cut.
class Utf8Filter {
 public:
  void push(std::string_view bytes, std::string* out);  // appends what is certain
  void finish(std::string* out);                        // what was held back becomes U+FFFD

 private:
  std::string held_;  // the beginning of one character: at most 3 bytes
};

}  // namespace headrace
