// Recognizes bytes that are text in another encoding than UTF-8, or compressed. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// Throws Error(kBadInput) that names the encoding and the program that converts it. `text`: the beginning is enough.
void refuse_other_encoding(const std::string& name, std::string_view text);
// Whether a file that begins so is no text in any encoding, but an image, an archive, a program and the like.
bool looks_binary(std::string_view head);

}  // namespace headrace
