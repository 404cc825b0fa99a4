// `--tree auto`: selects for each step how many nodes and levels a draft's tree has, so that the most tokens are output
// per second. A slow pass (streamed KV) favours a large tree, a fast one a small one; text that the draft predicts well
// favours a deep one. Pure: costs and results are passed in, and it has no clock.
//
// The result of a step is known for smaller trees as well: an accepted node would have been in every tree that is large
// enough for its rank among the scores. So gains of all sizes are compared over the same steps. Until there are enough
// steps, the draft's own probabilities estimate what a size adds. Costs are measured by size and interpolated linearly.
// Occasionally a step tries the next larger size.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/speculation/accept.h"
#include "runtime/speculation/policy/running_cost.h"
#include "runtime/speculation/tree.h"

namespace headrace {

struct TunerOptions {
  TreeLimits largest;                            // the draft's shape
  TreeLimits start = {.nodes = 8, .levels = 4};  // for the first steps; larger if a pass's rows cost little
};

class TreeTuner {
 public:
  explicit TreeTuner(const TunerOptions& options);

  // The limits for the next step.
  TreeLimits next() const;
  // The proposal, result and cost of a step with these limits.
  void record(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance, double draft_ms,
              double verify_ms);

 private:
  // Accepted tokens of trees of one size and of the size below, over the same steps, and the number that the draft's
  // scores predicted; decaying.
  struct Gain {
    double here = 0, below = 0, predicted_here = 0, predicted_below = 0;
    double predicted_growth(double otherwise) const;
  };
  struct Choice {
    size_t size = 0;
    int64_t levels = 1;
  };

  TreeLimits limits_of(const Choice& choice) const { return {.nodes = sizes_[choice.size], .levels = choice.levels}; }
  Choice near(const TreeLimits& limits, double scale, int64_t levels) const;
  Choice best() const;
  void expect(size_t size, std::vector<double>* by_levels) const;
  double verify_ms(size_t size) const;
  double draft_ms(int64_t levels) const;
  void rank(const Tree& tree, const Acceptance& acceptance);
  void predict(const Tree& tree);
  void learn(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance);

  const TunerOptions options_;
  std::vector<int64_t> sizes_;                  // candidates, ascending
  std::vector<RecentCost> verify_;              // [size]
  std::vector<RecentCost> draft_;               // [level - 1]
  std::vector<std::vector<Gain>> gains_;        // [size][level - 1]
  double first_sum_ = 1.0, first_steps_ = 2.0;  // of trees of two nodes
  std::vector<int32_t> order_;                  // scratch: nodes by score
  std::vector<int64_t> needed_;  // scratch: [depth - 1] the smallest size with which a step reaches this depth
  std::vector<double> level_sums_, predicted_;  // scratch; predicted_: [size][level - 1], by the scores
  int64_t steps_ = 0;
};

}  // namespace headrace
