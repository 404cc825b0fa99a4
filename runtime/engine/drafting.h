// Drafting in one run: the draft, the choice of tree sizes, and their statistics. Without a draft a step's tree is the
// root alone, and this only records step times. Internal to the engine. Thread: one.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "offload/device/stopwatch.h"
#include "offload/host/clock.h"
#include "runtime/draft/draft_model.h"
#include "runtime/speculation/policy/refresh_policy.h"
#include "runtime/speculation/policy/tree_tuner.h"
#include "runtime/speculation/stats.h"

namespace headrace {

// What came of a step.
struct Outcome {
  int64_t committed = 0;  // Speculation has the words
  // Of each accepted token; none: the accepted path is that of the proposed tree.
  std::optional<std::span<const int32_t>> accepted_depths{};
  VerifyOutcome verify_outcome{};
};

struct DraftingOptions {
  std::optional<TreeLimits> limits{};  // of each step's tree; none: it is chosen here
  bool streams = false;  // a pass over the full KV waits for the link: larger trees are worth it from the start
  VerifyMode verify = VerifyMode::kFull;
  PartialShape partial{};  // what partial steps read; off: there are none
  int64_t most_steps = 0;
  StepCosts step_costs{};  // GenerateOptions
};

class Drafting {
 public:
  // `model` and `draft`, which is the run's, are null without a draft. They and `compute` outlive this.
  Drafting(const DraftModel* model, Draft* draft, Stream& compute, const DraftingOptions& options);

  bool drafts() const { return draft_ != nullptr; }
  int64_t deepest() const;  // levels that a tree may have below its root

  // A step begins, whose tree will stand behind `pending` tokens in the target's pass.
  void begin(StepMode mode, int64_t pending);
  // Fills a tree that holds `root` alone; it stands at `position`.
  void propose(int32_t root, int64_t position, Tree* tree);
  // The same into device memory, without a wait. No tree: there is none to be had there, and propose() is to be called.
  ProposedTree propose_into(int32_t root, int64_t position, const TreeInputs& to);
  // Draft::rank(); none without a draft.
  std::optional<TokenRank> rank(int32_t token) { return draft_ != nullptr ? draft_->rank(token) : std::nullopt; }
  // The pending tokens and the tree behind them have been verified, and what was right of them committed; the first is
  // at `position`.
  void observe(const Tree& tree, const Acceptance& acceptance, int64_t position, const Outcome& outcome);

  // The step that has begun is to judge `pending` tokens after all: nothing stands behind them.
  void turn_to_refresh(int64_t pending);
  // A partial step has computed `nodes` nodes of the tree of pending tokens, of which `drafted` are what was proposed,
  // as far as it went, with what was right of them; both empty: nothing of it. Takes the place of observe().
  void grown(int64_t nodes, const Tree& drafted, const Acceptance& followed);

  double last_ms() const { return step_ms_.empty() ? 0 : static_cast<double>(step_ms_.back()); }
  const std::vector<float>& step_ms() const { return step_ms_; }  // from proposal to commit
  const Speculation& speculation() const { return speculation_; }

 private:
  TreeLimits next_limits();
  std::span<const int32_t> depths_to(int64_t last);  // 1, 2, … last; until the next call
  void record_tree(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance, double verify_ms);

  const DraftModel* const model_;
  Draft* const draft_;
  TreeLimits limits_;
  // Of steps over the full KV, and over the partial KV. None: every tree has the limits above.
  std::array<std::optional<TreeTuner>, 2> tuners_;
  std::optional<TreeTuner>& tuner() { return tuners_[mode_ == StepMode::kPartial ? 1 : 0]; }
  const StepCosts step_costs_;
  Speculation speculation_;
  std::vector<float> step_ms_;
  std::vector<int32_t> depths_;
  StepMode mode_ = StepMode::kFull;
  int64_t pending_ = 0;
  int64_t proposed_ = 0;  // tokens, in the step
  int64_t levels_ = 0;    // of what was proposed
  const bool rows_cost_;  // each row of a pass
  HostClock::time_point start_{};
  double draft_ms_ = 0;
  Stream& compute_;
  std::unique_ptr<Stopwatch> stopwatch_;  // of a tree that the host does not wait for
  bool timed_ = false;                    // the step's is one
};

}  // namespace headrace
