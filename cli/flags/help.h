// The help of a command: the flags of a first day, or all, by topic. Pure but for terminal_columns(). Any thread.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <string>

namespace headrace {

// Of standard output's terminal; 100 if it is none.
size_t terminal_columns();
// `path`: the command's name, "bench quality"; empty: the program itself. `all`: every flag, with its environment
// variable; else those that most runs need, and all of a command that has few. Lines have at most `columns`
// characters, but for longer words.
std::string help_text(const CLI::App& command, const std::string& path, bool all, size_t columns);

}  // namespace headrace
