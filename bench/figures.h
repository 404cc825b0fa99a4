// Times and figures of a bench. Pure; any thread.
#pragma once

#include <algorithm>
#include <vector>

#include "offload/host/clock.h"
#include "runtime/base/rounding.h"

namespace headrace::bench {

using Clock = HostClock;

// Three decimals, for JSON.
inline double rounded(double value) { return to_decimals(value, 3); }

inline double median(std::vector<double> values) {  // 0 if empty
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

}  // namespace headrace::bench
