// UTF-8: code points, replacement of invalid bytes, an incremental decoder. Pure functions and a plain value; any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Classifies the first bytes of `text`. `length` is that of a whole character, or of the longest beginning of one (the
// Unicode standard's "maximal subpart", which becomes one U+FFFD).
struct Utf8Unit {
  enum Kind { kCharacter, kInvalid, kTruncated } kind;  // kTruncated: the text ends inside the character
  size_t length;
  char32_t code_point;  // of a kCharacter
};
Utf8Unit next_utf8(std::string_view text);  // text is not empty

bool is_utf8(std::string_view text);
bool is_white_space(char32_t c);  // Unicode's White_Space
// Appends `text`; every maximal invalid part becomes U+FFFD, as the reference does with errors="replace".
void append_valid_utf8(std::string_view text, std::string* out);
void append_code_point(char32_t code_point, std::string* out);
// Whether a byte of valid UTF-8 is not the first of its character.
inline bool is_continuation(char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; }
// The length of the character that begins with `lead`, the first byte of valid UTF-8.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Converts bytes to valid UTF-8, independent of how the input is split.
class Utf8Filter {
 public:
  void push(std::string_view bytes, std::string* out);  // appends complete characters
  void finish(std::string* out);                        // the incomplete rest becomes U+FFFD

 private:
  std::string held_;  // the start of one character: at most 3 bytes
};

}  // namespace headrace
