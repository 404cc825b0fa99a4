// Recent costs and yields of steps. Plain values; no clock.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
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

// The lower median of the last few samples: the first of a kind may include one-time work, and any may be disturbed.
struct RecentCost {
  static constexpr size_t kSamples = 4;
  std::array<double, kSamples> ms{};
  size_t count = 0;
  void add(double sample) { ms[count++ % kSamples] = sample; }
  bool known() const { return count > 0; }
  double value() const {
    const size_t kept = std::min(count, kSamples);
    std::array<double, kSamples> sorted = ms;
    const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>((kept - 1) / 2);
    std::nth_element(sorted.begin(), middle, sorted.begin() + static_cast<std::ptrdiff_t>(kept));
    return *middle;
  }
};

// The time of a pass by its rows: a line through recent samples, flat until they show a slope. Outliers as above.
struct RunningLine {
  static constexpr double kRowsKnown = 16;  // spread of rows from which a slope is trusted
  RunningMean ms, rows, square, product;
  int64_t samples = 0;
  void add(double x, double y) {
    if (samples > 1) y = std::min(y, RunningCost::kMaxTimes * at(x));
    if (++samples == 2) ms = rows = square = product = {};
    ms.add(y);
    rows.add(x);
    square.add(x * x);
    product.add(x * y);
  }
  bool known() const { return samples > 0; }
  double value() const { return ms.value(0); }  // of a pass with as many rows as usual
  double a_row() const {
    const double mean = rows.value(0), y = value();
    const double spread = square.value(0) - mean * mean + kRowsKnown * kRowsKnown / std::max(1.0, rows.weight);
    return std::clamp((product.value(0) - mean * y) / spread, 0.0, mean > 0 ? y / mean : 0.0);
  }
  double at(double x) const { return value() + a_row() * (x - rows.value(0)); }
};

}  // namespace headrace
