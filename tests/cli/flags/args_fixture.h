// What the tests of cli/flags/args.h share: a command line's refusal, and what `generate` makes of some flags. Header
// only.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <variant>
#include <vector>

#include "cli/flags/args.h"

namespace headrace {

// What is said of it.
inline std::string refusal(const std::vector<std::string>& args) {
  try {
    parse_args(args);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "not refused";
  return "";
}

inline GenerateArgs generate(std::vector<std::string> args) {
  args.insert(args.begin(), {"generate", "-m", "model"});
  return std::get<GenerateArgs>(parse_args(args));
}

}  // namespace headrace
