// Recent costs and yields of steps. Plain values; no clock.
#pragma once

#include <algorithm>
#include <cstdint>

namespace headrace {

// A decaying mean: the remaining weight of a sample after the next one.
struct RunningMean {
  static constexpr double kForget = 0.9;
  double sum = 0, weight = 0;
  void add(double sample) {
    sum = sum * kForget + sample;
    weight = weight * kForget + 1;
  }
  double value(double otherwise) const { return weight > 0 ? sum / weight : otherwise; }
};

// A mean of times. The first may include one-time work, and counts only until there is a second; a sample far above the
// others counts in part.
struct RunningCost {
  static constexpr double kMaxTimes = 3;  // times the mean: larger samples are capped
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
