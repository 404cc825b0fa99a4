// The byte-level alphabet of GPT-2: each of the 256 bytes is written in the vocabulary as one printable character.
// Pure functions, any thread.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// The bytes of a vocabulary entry; false if it has a character outside the alphabet (an added token, for example).
bool byte_level_bytes(std::string_view token, std::string* bytes);

}  // namespace headrace
