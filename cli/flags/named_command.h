// The commands of the flag table by their full names, for what is written from all of them: man pages and completions.
// Pure; any thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace headrace {

struct NamedCommand {
  std::string name;  // "headrace cache list"
  const CLI::App* app;
};

// In the order of the help, parents first.
std::vector<NamedCommand> all_commands(const CLI::App& app);
// Those that the help lists.
std::vector<const CLI::Option*> shown_options(const CLI::App& app);
// "headrace cache list" -> "headrace-cache-list", for '-'
std::string joined_name(const std::string& name, char between);

}  // namespace headrace
