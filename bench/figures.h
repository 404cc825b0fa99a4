// Times and figures of a bench. Pure but for the clock; any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <vector>

namespace headrace::bench {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}
inline double ms_since(Clock::time_point start) { return seconds_since(start) * 1e3; }

// Three decimals, for JSON.
inline double rounded(double value) { return std::isfinite(value) ? std::round(value * 1000) / 1000 : 0; }

inline double median(std::vector<double> values) {  // 0 of none
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace headrace::bench
