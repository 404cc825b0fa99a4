#include "runtime/speculation/policy/refresh_policy.h"

#include <algorithm>

namespace headrace {

void RefreshPolicy::record_full(double ms, int64_t tokens) {
  full_.add(ms);
  full_tokens_.add(static_cast<double>(tokens));
  full_left_ = std::max<int64_t>(0, full_left_ - 1);
}

void RefreshPolicy::record_partial(double ms) {
  partial_.add(given_.partial_ms > 0 ? given_.partial_ms : ms);
  ++steps_;
  steps_ms_ += ms;
}

void RefreshPolicy::record_refresh(double ms, int64_t rows, double expected, int64_t tokens) {
  if (steps_ == 0) return;  // it has judged nothing
  refresh_.add(static_cast<double>(rows), given_.refresh_ms > 0 ? given_.refresh_ms : ms);
  expected_ = expected_ * kForget + expected;
  tokens_ = tokens_ * kForget + static_cast<double>(tokens);
  all_steps_ = all_steps_ * kForget + static_cast<double>(steps_);
  refreshes_ = refreshes_ * kForget + 1;
  if (!streams_ && full_.known()) compare(steps_ms_ + ms, tokens);
  steps_ = 0;
  steps_ms_ = 0;
}

// Continues with what costs less a token. A retry is judged by itself.
void RefreshPolicy::compare(double cycle_ms, int64_t tokens) {
  cycle_.add(cycle_ms);
  cycle_tokens_.add(static_cast<double>(tokens));
  if (cycle_.value(0) * full_tokens_.value(1) <= full_.value() * cycle_tokens_.value(1)) {
    pause_ = kFirstPause;
    return;
  }
  full_left_ = pause_;
  pause_ = std::min(2 * pause_, kLongestPause);
  cycle_ = cycle_tokens_ = {};
}

double RefreshPolicy::refresh_ms(double rows) const {
  if (refresh_.known()) return refresh_.at(rows);
  return full_.known() ? full_.value() : first_refresh_ * partial_.value();
}

bool RefreshPolicy::pays(const Growth& growth) const {
  if (steps_ == 0) return true;
  if (growth.more <= 0) return false;
  // Uses recent costs of steps: one-time work of past steps does not predict the next.
  const double refresh = refresh_ms(growth.rows);
  const double ms = refreshes_ * refresh_.value() + kOwn * refresh +
                    (all_steps_ + kOwn * static_cast<double>(steps_)) * partial_.value();
  const double believed = (tokens_ + kOwn * growth.expected) / (expected_ + kOwn * growth.expected);
  const double tokens = tokens_ + kOwn * believed * growth.expected;
  const double costs = growth.steps * partial_.value() + growth.more_rows * refresh_.a_row() - growth.saves * refresh;
  return believed * growth.more * ms > tokens * costs;
}

}  // namespace headrace
