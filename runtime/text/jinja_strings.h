// The strings that a Jinja template can print: text outside its tags, and the unescaped string literals inside them, in
// order, without comments. Not an interpreter. A pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

std::vector<std::string> jinja_strings(std::string_view source);

}  // namespace headrace
