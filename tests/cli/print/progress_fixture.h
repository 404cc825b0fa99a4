// A progress bar that writes into a text, by a clock that the test sets.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "cli/print/progress_bar.h"

namespace headrace {

class ProgressFixture : public ::testing::Test {
 protected:
  ProgressBar make(ProgressStyle style, int columns = 80) {
    ProgressOptions options;
    options.style = style;
    options.columns = columns;
    options.now = [this] { return time_; };
    options.write = [this](std::string_view text) { out_ += text; };
    return ProgressBar(options);
  }
  void wait(int ms) { time_ += std::chrono::milliseconds(ms); }

  std::chrono::steady_clock::time_point time_{};
  std::string out_;
};

}  // namespace headrace
