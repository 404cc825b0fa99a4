// The byte-level alphabet of GPT-2: each of the 256 bytes is written in the vocabulary as one printable character.
// Pure functions, any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

// The character that stands for a byte, in UTF-8.
const std::string& byte_level_character(uint8_t byte);
// A vocabulary entry's bytes; false if it holds a character outside the alphabet (an added token, say).
bool byte_level_bytes(std::string_view token, std::string* bytes);

}  // namespace headrace
