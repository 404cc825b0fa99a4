// The page at "/": page.html, compiled in. Any thread.
#pragma once

#include <string_view>

namespace headrace {

std::string_view page_html();

}  // namespace headrace
