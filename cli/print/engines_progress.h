// The progress of several engines on one line: "[1/5] a.txt prefill 45% | [2/5] b.txt decode 12%". Of one engine it is
// the bar itself. Owns neither bar nor mutex. Thread: each engine's progress on the engine's; the rest says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

#include "cli/print/progress_bar.h"
#include "runtime/commands/batch.h"  // Mutex

namespace headrace {

class EnginesProgress {
 public:
  // `mutex` guards the bar; the engines' progress locks it.
  EnginesProgress(ProgressBar* bar, Mutex* mutex, size_t engines);

  Progress& of(size_t engine);
  // A prefix of the engine's stages: "[2/5] GPL-3". Call with the mutex locked.
  void set_label(size_t engine, std::string_view label);

 private:
  class One final : public Progress {
   public:
    explicit One(EnginesProgress* all) : all_(all) {}
    void begin(std::string_view stage, std::string_view unit, int64_t total) override;
    void update(int64_t done) override;
    void end() override;

    std::string label, stage;  // no stage: not shown
    int64_t done = 0, total = 0;

   private:
    EnginesProgress* all_;
  };
  std::string line() const;

  ProgressBar& bar_;
  Mutex& mutex_;
  std::deque<One> engines_;  // none: one engine, whose progress is the bar
};

}  // namespace headrace
