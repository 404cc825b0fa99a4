// Flags that a command does not have, before CLI11 reads the command line: it would split "-hf" into "-h" and "-f".
// Pure; any thread.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

namespace headrace {

// The names of an option as they are typed: "-c", "-ctk", "--ctx-size".
std::vector<std::string> typed_names(const CLI::Option& option);
// Throws Error(kUsage) for the first flag of `args` that is none of `command`, whose name is `path`: with what Headrace
// does instead if llama.cpp has the flag, else with the flag that is spelled most like it. Throws
// CLI::CallForHelp or HelpWithAllFlags (parser.h) instead if help is asked for. `args`: those behind the command's
// name.
void check_flags(const CLI::App& command, const std::string& path, std::span<const std::string> args);

}  // namespace headrace
