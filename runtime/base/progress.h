// How long work tells how far it is. The engine calls from the thread that called it, never from inside a kernel.
#pragma once

#include <cstdint>
#include <string_view>

namespace headrace {

class Progress {
 public:
  virtual ~Progress() = default;
  // A stage begins: "loading weights" (bytes), "prefill" (tokens, all layers counted as one), "decode" (tokens).
  virtual void begin(std::string_view stage, std::string_view unit, int64_t total) = 0;
  virtual void update(int64_t done) = 0;  // of the stage that began last; cheap, may be called often
  // So much of it was done before it began; before the first update.
  virtual void skip(int64_t done) { update(done); }
  virtual void end() = 0;
};

}  // namespace headrace
