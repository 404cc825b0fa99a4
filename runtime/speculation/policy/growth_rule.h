// Decides when `--refresh-interval auto` has a tree of pending tokens judged: the tree grows while another partial step
// adds more expected confirmed tokens than its time is worth. The value of time is the run's rate: committed tokens
// over the time of growing and judging, for previous refreshes and, until there are some, for the coming one. So a
// promising tree grows longer. Promises are scaled by how far earlier ones came true. Pure: costs are passed in, and it
// has no clock.
#pragma once

#include <cstdint>

#include "runtime/speculation/policy/running_cost.h"

namespace headrace {

// Costs of steps that replace the measured times; 0: measured. refresh_ms: of each step over the full KV.
struct StepCosts {
  double partial_ms = 0, refresh_ms = 0;
};

class GrowthRule {
 public:
  // `streams`: a refresh waits for the link. `given` is for benches.
  explicit GrowthRule(bool streams, const StepCosts& given = {})
      : first_steps_(streams ? kFirstStreamed : kFirst), given_(given) {}

  void record_partial(double ms) { partial_.add(given_.partial_ms > 0 ? given_.partial_ms : ms); }
  // A refresh that committed `tokens` where `expected` were expected, after `steps` partial steps.
  void record_refresh(double ms, int64_t steps, double expected, int64_t tokens);

  // For a tree after `steps` partial steps: `expected` tokens would be confirmed now, `growth` more after another step.
  bool pays(int64_t steps, double expected, double growth) const;

 private:
  static constexpr int64_t kFirstStreamed = 8, kFirst = 4;  // steps, while the cost of a refresh is unknown
  static constexpr double kForget = 0.95;                   // decay of a refresh's weight per refresh
  static constexpr double kOwn = 3;  // weight of the coming refresh, in refreshes, beside the previous ones

  const int64_t first_steps_;
  const StepCosts given_;
  RunningCost partial_, refresh_;
  double refreshes_ = 0, steps_ = 0, expected_ = 0, tokens_ = 0;  // decaying sums
};

}  // namespace headrace
