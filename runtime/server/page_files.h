// The files of page/ as CMake compiles them in. Any thread.
#pragma once

#include <string_view>

namespace headrace {

std::string_view page_frame();  // HTML with an empty style and an empty script element
std::string_view page_style();
std::string_view page_script();  // the .js files, one after the other

}  // namespace headrace
