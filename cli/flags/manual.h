// What an installation has besides the program: a man page a command, and completion for bash, zsh and fish. All are
// written from the flag table. The build runs the program to write the files that `cmake --install` copies. Pure; any
// thread.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace headrace {

struct ManualFile {
  std::string name;  // "man1/headrace-cache-list.1", "headrace.bash"
  std::string text;
};

std::vector<ManualFile> man_pages(const CLI::App& app);
ManualFile bash_completion(const CLI::App& app);
ManualFile zsh_completion(const CLI::App& app);
ManualFile fish_completion(const CLI::App& app);

}  // namespace headrace
