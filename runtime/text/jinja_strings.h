// The strings that a Jinja template can print: text outside its tags and the string literals inside them, unescaped, in
// order. Comments are left out. Not an interpreter. A pure function.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

std::vector<std::string> jinja_strings(std::string_view source);

}  // namespace headrace
