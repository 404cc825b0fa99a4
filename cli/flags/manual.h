// The man page and the bash completion, both written from the flag table (parser.h). The build runs the program to make
// the files that `cmake --install` copies. Thread: one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace headrace {

std::string man_page(const CLI::App& app);
std::string bash_completion(const CLI::App& app);

}  // namespace headrace
