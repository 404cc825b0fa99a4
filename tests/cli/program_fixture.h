// The program with a tiny model, in a folder of the tests' own. Header only.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/cli/process.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/temporary_folder.h"

namespace headrace {

class ProgramTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    model_ = *folder_ / "model";
    write_tiny_model(model_);
  }
  static void TearDownTestSuite() { delete folder_; }

  // `command` with the tiny model; deterministic, 12 tokens unless `more` says otherwise.
  static Finished run(const std::string& command, const std::vector<std::string>& more,
                      const RunOptions& options = {}) {
    std::vector<std::string> args = {command, "-m", model_, "-n", "12", "--ignore-eos", "-t", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args, options);
  }
  static std::vector<nlohmann::json> json_lines(const std::string& text) {
    std::vector<nlohmann::json> lines;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  static inline TemporaryFolder* folder_ = nullptr;
  static inline std::string model_;
};

}  // namespace headrace
