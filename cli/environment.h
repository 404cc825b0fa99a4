// What HEADRACE_* says where the command line says nothing. The parser's own way would not tell the two apart: here the
// command line is read first and alone, and a variable that it leaves no room for is passed over. Borrows the
// application's options. Thread: one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace headrace {

class Environment {
 public:
  // Takes the variables' names off all options, so that parsing sees the command line alone.
  explicit Environment(CLI::App& app);
  ~Environment() { restore(); }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  void restore();  // for the help, which shows them
  // After parsing: sets what `app`, the command that was chosen, was not told. Throws CLI::ParseError that names flag
  // and variable.
  void apply(CLI::App& app) const;

 private:
  std::vector<std::pair<CLI::Option*, std::string>> names_;
};

}  // namespace headrace
