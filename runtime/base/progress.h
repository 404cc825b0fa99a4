// Reports the progress of long work. The engine calls it on its caller's thread, never inside a kernel.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace {

class Progress {
 public:
  virtual ~Progress() = default;
  // Begins a stage: "loading weights" (bytes), "prefill" (tokens, all layers counted as one), "decode" (tokens).
  virtual void begin(std::string_view stage, std::string_view unit, int64_t total) = 0;
  virtual void update(int64_t done) = 0;  // of the current stage; cheap, may be called often
  // Work that was done before the stage began; before the first update.
  virtual void skip(int64_t done) { update(done); }
  virtual void end() = 0;
};

}  // namespace headrace
