#include "runtime/speculation/policy/growth_rule.h"

namespace headrace {

void GrowthRule::record_refresh(double ms, int64_t steps, double expected, int64_t tokens) {
  refresh_.add(given_.refresh_ms > 0 ? given_.refresh_ms : ms);
  expected_ = expected_ * kForget + expected;
  tokens_ = tokens_ * kForget + static_cast<double>(tokens);
  steps_ = steps_ * kForget + static_cast<double>(steps);
  refreshes_ = refreshes_ * kForget + 1;
}

bool GrowthRule::pays(int64_t steps, double expected, double growth) const {
  if (steps == 0) return true;
  if (growth <= 0) return false;
  if (!refresh_.known()) return steps < first_steps_;
  // Uses recent costs of steps: one-time work of past steps does not predict the next.
  const double ms =
      (refreshes_ + kOwn) * refresh_.value() + (steps_ + kOwn * static_cast<double>(steps)) * partial_.value();
  const double believed = (tokens_ + kOwn * expected) / (expected_ + kOwn * expected);
  return believed * growth * ms > (tokens_ + kOwn * believed * expected) * partial_.value();
}

}  // namespace headrace
