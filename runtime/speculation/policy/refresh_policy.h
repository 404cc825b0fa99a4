// Decides when `--refresh-interval auto` has the pending tokens judged, be they a chain or a tree: they grow while
// further partial steps add more expected confirmed tokens than their time is worth. The value of time is the run's
// rate: committed tokens over the time of growing and judging, for previous refreshes and for the coming one. So a
// promising tree grows longer. Promises are scaled by how far earlier ones came true.
//
// Where nothing streams, a full pass may cost little more than a partial one, and its tokens are final. There the
// policy first measures full steps. While partial steps and their refreshes cost more a token, it takes full steps and
// retries partial ones at growing intervals. Pure: costs are passed in, and it has no clock.
#pragma once

#include <cstdint>

#include "runtime/speculation/policy/running_cost.h"

namespace headrace {

// Costs of steps that replace the measured times; 0: measured.
struct StepCosts {
  double partial_ms = 0, refresh_ms = 0;
};

class RefreshPolicy {
 public:
  // `streams`: a refresh waits for the link. `given` is for benches. `refresh_steps`: partial steps that a refresh is
  // predicted to cost; 0: unknown.
  explicit RefreshPolicy(bool streams, const StepCosts& given = {}, double refresh_steps = 0)
      : given_(given),
        streams_(streams),
        first_refresh_(refresh_steps > 0 ? refresh_steps : kFirstRefresh),
        full_left_(streams ? 0 : kFirstFull) {}

  // The next step should read the full KV: nothing is pending, and partial steps are not known to pay.
  bool full() const { return steps_ == 0 && full_left_ > 0; }

  struct Growth {
    double expected = 0;  // tokens that a refresh would confirm now
    double more = 0;      // in addition, after `steps` further partial steps
    double steps = 1;
    double saves = 0;  // the chance that these steps save a refresh
    // Tokens that a refresh would judge now, and in addition; of a tree 0, since refreshes judge about as many each.
    double rows = 0, more_rows = 0;
  };
  bool pays(const Growth& growth) const;

  void record_full(double ms, int64_t tokens);
  void record_partial(double ms);
  // A refresh that judged `rows`, as Growth counts them, and committed `tokens` where `expected` were expected.
  void record_refresh(double ms, int64_t rows, double expected, int64_t tokens);

 private:
  static constexpr double kFirstRefresh = 20;  // the cost of a refresh in partial steps, while nothing is known of it
  static constexpr double kForget = 0.95;      // decay of a refresh's weight per refresh
  static constexpr double kOwn = 3;            // weight of the coming refresh, in refreshes, beside the previous ones
  static constexpr int64_t kFirstFull = 2, kFirstPause = 32, kLongestPause = 1024;  // full steps

  double refresh_ms(double rows) const;
  void compare(double cycle_ms, int64_t tokens);

  const StepCosts given_;
  const bool streams_;
  const double first_refresh_;
  RunningCost partial_, full_;
  RunningLine refresh_;
  RunningMean full_tokens_, cycle_, cycle_tokens_;
  double refreshes_ = 0, all_steps_ = 0, expected_ = 0, tokens_ = 0;  // decaying sums
  int64_t steps_ = 0;                                                 // partial steps since the last refresh,
  double steps_ms_ = 0;                                               // and their time
  int64_t full_left_, pause_ = kFirstPause;
};

}  // namespace headrace
