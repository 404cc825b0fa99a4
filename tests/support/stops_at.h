// A progress that interrupts a run: sets a flag at the n-th update of its decode stage.
#pragma once

#include <atomic>
#include <string_view>

#include "runtime/base/progress.h"

namespace headrace::testing {

class StopsAt : public Progress {
 public:
  StopsAt(int updates, std::atomic<bool>* flag) : left_(updates), flag_(flag) {}
  void begin(std::string_view stage, std::string_view, int64_t) override { decoding_ = stage == "decode"; }
  void update(int64_t) override {
    if (decoding_ && --left_ == 0) flag_->store(true);
  }
  void end() override {}

 private:
  int left_;
  bool decoding_ = false;
  std::atomic<bool>* const flag_;
};

}  // namespace headrace::testing
