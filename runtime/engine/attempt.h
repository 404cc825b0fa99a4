// One attempt at a run: its sequence and executor, what drafts, and its output, from prefill to the last token. A saved
// prefix that turns out to be damaged ends an attempt, and the engine makes another. Measures the time and the link's
// bytes. Internal to the engine. Thread: as Engine.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "offload/host/clock.h"
#include "runtime/engine/decode_loop.h"
#include "runtime/engine/engine_impl.h"

namespace headrace {

// A run, of which there may be several attempts. All references must outlive them.
struct Attempted {
  Engine::Impl& engine;
  const std::vector<int32_t>& prompt;
  const GenerateOptions& options;
  Progress* progress;                              // may be null
  GenerateResult& result;                          // times and bytes are added to those of earlier attempts
  std::optional<HostClock::time_point> started{};  // when the first attempt began its prefill
};

class Attempt {
 public:
  Attempt(Attempted& run, PreparedRun prepared);

  // Loads the weights, if no run did before, and runs the prompt. Returns the token after it; none: the run was
  // interrupted, or the prefix is damaged.
  std::optional<int32_t> prefill();
  // Runs from the token after the prompt to the end. Does nothing if the run has no room for a token.
  void decode(int32_t first);
  // Saves the prefix, keeps the rows for the next run, and fills the result. False: the prefix is damaged; only the
  // attempt's time and bytes count.
  bool finish();

 private:
  double refresh_steps() const;
  void report_plan();
  std::optional<int32_t> read_prompt();
  bool incomplete() const;

  Attempted& run_;
  PreparedRun prepared_;
  Drafting drafting_;  // outlives the executor, which waits for the work that uses its memory
  Sequence sequence_;
  std::unique_ptr<TokenMasks> masks_;  // null: the answer has no grammar
  Executor executor_;
  Output output_;
};

}  // namespace headrace
