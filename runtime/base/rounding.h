// Rounds figures for reports: JSON would otherwise have 17 digits, and -0.0. A value that is not finite becomes 0.
// Pure; any thread.
#pragma once

#include <cmath>

namespace headrace {

inline double to_decimals(double value, int decimals) {
  const double unit = std::pow(10.0, decimals);
  return std::isfinite(value) ? std::round(value * unit) / unit + 0.0 : 0;  // -0 + 0 is 0
}

inline double to_digits(double value, int digits) {
  if (!std::isfinite(value) || value == 0) return 0;
  const double unit = std::pow(10.0, digits - 1 - std::floor(std::log10(std::abs(value))));
  return std::round(value * unit) / unit;
}

}  // namespace headrace
