// Recognizes bytes that are text in another encoding than UTF-8, or compressed. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

namespace headrace {

// Throws Error(kBadInput) that names the encoding and the program that converts it. `text`: the beginning is enough.
void refuse_other_encoding(const std::string& name, std::string_view text);

}  // namespace headrace
