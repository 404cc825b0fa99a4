// Base64 (RFC 4648), as data URLs have it. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace headrace {

// Padding may be left out, and white space be between the characters. None: `text` has another character, or an end
// that no bytes have.
std::optional<std::string> decode_base64(std::string_view text);

}  // namespace headrace
