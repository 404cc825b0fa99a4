// An error's first line: what and where, without the hint below it. For notes and rows, which are one line each. Like
// the base header it includes nothing of ours and may be included everywhere. Pure; any thread.
#pragma once

#include <exception>
#include <string>
#include <string_view>

namespace headrace {

inline std::string first_line(std::string_view text) { return std::string(text.substr(0, text.find('\n'))); }
inline std::string first_line(const std::exception& error) { return first_line(std::string_view(error.what())); }

}  // namespace headrace
