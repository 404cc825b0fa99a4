// What steps have cost and given lately. Plain values; no clock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace {

// It forgets: of a sample's weight, this is left a sample later.
struct RunningMean {
  static constexpr double kForget = 0.9;
  double sum = 0, weight = 0;
  void add(double sample) {
    sum = sum * kForget + sample;
    weight = weight * kForget + 1;
  }
  double value(double otherwise) const { return weight > 0 ? sum / weight : otherwise; }
};

// Of times: the first may have paid for something that comes once, and counts until there is another; so may any that
// is far larger than the rest, which counts in part.
struct RunningCost {
  static constexpr double kMaxTimes = 3;  // the mean: more does not count
  RunningMean ms;
  int64_t samples = 0;
  void add(double sample) {
    if (++samples == 2) ms = {};
    ms.add(samples > 2 && value() > 0 ? std::min(sample, kMaxTimes * value()) : sample);
  }
  bool known() const { return samples > 0; }
  double value() const { return ms.value(0); }
};

}  // namespace headrace
