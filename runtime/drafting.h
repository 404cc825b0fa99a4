// What guesses ahead in one run: its draft, the choice of its trees' sizes, and what came of them. Without a draft a
// step's tree is the root alone, and this only keeps the steps' times. Internal to the engine. Thread: one.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/draft/draft_model.h"
#include "runtime/speculation.h"
#include "runtime/tree_tuner.h"

namespace headrace {

class Drafting {
 public:
  // `model` may be null, and outlives this.
  Drafting(DraftModel* model, const DraftRun& run);

  Draft* draft() const { return draft_.get(); }  // null: none
  // Where the run's KV cache lies is known: a pass that streams is worth larger trees from the start.
  void planned(Backend backend, bool streams, int64_t most_steps);

  void propose(int32_t root, int64_t position, Tree* tree);
  // The tree has been verified and what was right of it committed.
  void observe(const Tree& tree, const Acceptance& acceptance);

  const std::vector<float>& step_ms() const { return step_ms_; }  // from proposal to commit
  const Speculation& speculation() const { return speculation_; }

 private:
  using Clock = std::chrono::steady_clock;

  const DraftModel* const model_;
  const std::unique_ptr<Draft> draft_;
  const bool fixed_;  // the run says how large its trees are
  TreeLimits limits_;
  std::optional<TreeTuner> tuner_;  // none: every tree has the shape that was asked for
  Speculation speculation_;
  std::vector<float> step_ms_;
  Clock::time_point start_{};
  double draft_ms_ = 0;
};

}  // namespace headrace
