// When `--refresh-interval auto` has a tree of pending tokens judged: while another partial step adds more to what a
// refresh will confirm than its time is worth elsewhere, the tree grows. What time is worth is what the run gives: the
// tokens committed over the time that growing and judging took, of the refreshes before and, until there are some, of
// the one to come. A tree that promises much so grows longer than one that promises little; and what is promised is
// believed as far as what was promised before has come. Pure: it is told what things cost, and has no clock.
#pragma once

#include <cstdint>

#include "runtime/speculation/policy/running_cost.h"

namespace headrace {

// What steps are taken to cost, in place of the measured times; 0: they are measured. refresh_ms: of each step over the
// full KV.
struct StepCosts {
  double partial_ms = 0, refresh_ms = 0;
};

class GrowthRule {
 public:
  // `streams`: a refresh waits for the link. The costs are for benches.
  explicit GrowthRule(bool streams, const StepCosts& given = {})
      : first_steps_(streams ? kFirstStreamed : kFirst), given_(given) {}

  void record_partial(double ms) { partial_.add(given_.partial_ms > 0 ? given_.partial_ms : ms); }
  // A refresh that committed `tokens` of the ones `expected`, after `steps` partial steps.
  void record_refresh(double ms, int64_t steps, double expected, int64_t tokens);

  // Of a tree that has taken `steps` partial steps: the tokens that a refresh is expected to confirm now, and how many
  // more after another step.
  bool pays(int64_t steps, double expected, double growth) const;

 private:
  static constexpr int64_t kFirstStreamed = 8, kFirst = 4;  // steps, before what a refresh costs is known
  static constexpr double kForget = 0.95;                   // of a refresh's weight, one later
  static constexpr double kOwn = 3;  // refreshes like the one to come that are believed beside those that were

  const int64_t first_steps_;
  const StepCosts given_;
  RunningCost partial_, refresh_;
  double refreshes_ = 0, steps_ = 0, expected_ = 0, tokens_ = 0;  // forgetting
};

}  // namespace headrace
