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
#include "runtime/speculation/policy/tree_trimmer.h"
#include "runtime/speculation/policy/tree_tuner.h"
#include "runtime/speculation/stats.h"

namespace headrace {

// The result of a step.
struct Outcome {
  int64_t committed = 0;  // tokens, as Speculation counts them
  // The depth of each accepted token; none: the accepted path is the proposed tree's.
  std::optional<std::span<const int32_t>> accepted_depths{};
  VerifyOutcome verify_outcome{};
  std::span<const int32_t> wrong_ages{};  // of the pending tokens that it rejected
};

struct DraftingOptions {
  std::optional<TreeLimits> limits{};  // of each step's tree; none: Drafting chooses them
  int64_t most_nodes = kMaxTreeNodes;  // of trees whose size measurements choose
  bool streams = false;                // a pass over the full KV waits for the link: the first trees are larger
  bool nodes_cost = false;             // each node makes a pass slower, on a GPU as well: recurrent layers
  VerifyMode verify = VerifyMode::kFull;
  std::string substitute{};  // "Q4_K": of weights that partial steps multiply; empty: none
  PartialShape partial{};    // rows that partial steps read; off: there are no partial steps
  bool grows = false;        // partial steps grow a tree of pending tokens, whatever is proposed
  int64_t most_steps = 0;
  StepCosts step_costs{};  // GenerateOptions
};

class Drafting {
 public:
  // `model` and the run's `draft` are null without a draft. They and `compute` must outlive this.
  Drafting(const DraftModel* model, Draft* draft, Stream& compute, const DraftingOptions& options);

  bool drafts() const { return draft_ != nullptr; }
  int64_t deepest() const;  // levels that a tree may have below its root

  // Begins a step. Its tree will follow `pending` tokens in the target's pass, and `age` tokens after the last refresh.
  void begin(StepMode mode, int64_t pending, int64_t age);
  // Fills a tree that holds only `root`, the token at `position`.
  void propose(int32_t root, int64_t position, Tree* tree);
  // The same into device memory, without a wait. Returns nothing if no tree can be built on the device; call propose().
  ProposedTree propose_into(int32_t root, int64_t position, const TreeInputs& to);
  // Calls Draft::rank(); none without a draft.
  std::optional<TokenRank> rank(int32_t token) { return draft_ != nullptr ? draft_->rank(token) : std::nullopt; }
  // Records a step that verified the pending tokens and the tree behind them and committed the accepted path. The first
  // of these tokens is at `position`.
  void observe(const Tree& tree, const Acceptance& acceptance, int64_t position, const Outcome& outcome);

  // The step verifies `pending` tokens only; no tree follows them.
  void turn_to_refresh(int64_t pending);
  // Records a partial step that computed `nodes` nodes of the tree of pending tokens; called instead of observe().
  // `drafted`: the tip and the proposed tokens that the step computed after it; `followed`: their accepted path. Both
  // are empty if the step did not compute the tip.
  void grown(int64_t nodes, const Tree& drafted, const Acceptance& followed);

  double last_ms() const { return step_ms_.empty() ? 0 : static_cast<double>(step_ms_.back()); }
  const std::vector<float>& step_ms() const { return step_ms_; }  // from proposal to commit
  const Speculation& speculation() const { return speculation_; }

 private:
  TreeLimits next_limits();
  std::span<const int32_t> depths_to(int64_t last);  // 1, 2, … last; until the next call
  double given_ms(double measured) const;
  void record_tree(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance, double verify_ms);

  const DraftModel* const model_;
  Draft* const draft_;
  TreeLimits limits_, largest_;
  // For steps over the full KV [0] and over the partial KV [1]. No tuner: every tree has the limits above.
  std::array<std::optional<TreeTuner>, 2> tuners_;
  std::array<std::optional<TreeTrimmer>, 2> trimmers_;  // of a draft that finds its trees
  size_t kv() const { return mode_ == StepMode::kPartial ? 1 : 0; }
  std::optional<TreeTuner>& tuner() { return tuners_[kv()]; }
  TreeTrimmer* trimmer();              // null: the step's tree is not cut
  TreeTrimmer* trimmed_by_ = nullptr;  // in the step; null: its tree was not proposed, or is whole
  const StepCosts step_costs_;
  Speculation speculation_;
  std::vector<float> step_ms_;
  std::vector<int32_t> depths_;
  StepMode mode_ = StepMode::kFull;
  int64_t pending_ = 0, age_ = 0;
  int64_t proposed_ = 0;  // tokens, in the step
  int64_t levels_ = 0;    // of what was proposed
  const bool rows_cost_;  // every row makes a pass slower: a CPU, or recurrent layers
  HostClock::time_point start_{};
  double draft_ms_ = 0;
  Stream& compute_;
  std::unique_ptr<Stopwatch> stopwatch_;  // times a tree that the host does not wait for
  bool timed_ = false;                    // this step's tree is such a tree
};

}  // namespace headrace
