#include "tests/support/weight_search.h"

#include <algorithm>
#include <cmath>

#include "cache/base.h"

namespace headrace::testing_support {
namespace {

float as_f16(float value) { return f16_to_f32(f32_to_f16(value)); }

// With levels from `low` to `high`: a weight is scale * level - minimum.
double error_with(const float* x, int count, float scale, float minimum, float low, float high) {
  const float inverse = scale != 0 ? 1 / scale : 0;
  float error = 0;
  for (int i = 0; i < count; ++i) {
    const float off = x[i] + minimum - scale * std::clamp(std::nearbyint((x[i] + minimum) * inverse), low, high);
    error += off * off;
  }
  return error;
}

double searched_with_minima(const float* x, float top) {
  constexpr int kGroup = 32, kGroups = 8, kNumbers = 64;
  float scale = 0, minimum = 0;
  for (int g = 0; g < kGroups; ++g) {
    const auto [low, high] = std::minmax_element(x + g * kGroup, x + (g + 1) * kGroup);
    minimum = std::max(minimum, -*low);
    scale = std::max(scale, (*high - std::min(*low, 0.0f)) / top);
  }
  const float d = as_f16(scale / (kNumbers - 1)), dmin = as_f16(minimum / (kNumbers - 1));
  double sum = 0;
  for (int g = 0; g < kGroups; ++g) {
    double least = INFINITY;
    for (int i = 0; i < kNumbers * kNumbers; ++i) {
      const float a = d * static_cast<float>(i / kNumbers), b = dmin * static_cast<float>(i % kNumbers);
      least = std::min(least, error_with(x + g * kGroup, kGroup, a, b, 0, top));
    }
    sum += least;
  }
  return sum;
}

double searched_with_signs(const float* x) {
  constexpr int kRun = 16, kRuns = 16;
  float largest = 0;
  for (int i = 0; i < kRun * kRuns; ++i) largest = std::max(largest, std::abs(x[i]));
  const float d = as_f16(largest / (32 * 127));
  double sum = 0;
  for (int r = 0; r < kRuns; ++r) {
    double least = INFINITY;
    for (int s = -128; s <= 127; ++s) {
      if (s != 0) least = std::min(least, error_with(x + r * kRun, kRun, d * static_cast<float>(s), 0, -32, 31));
    }
    sum += least;
  }
  return sum;
}

}  // namespace

double searched_error(WeightType type, const float* values) {
  if (type == WeightType::kQ6K) return searched_with_signs(values);
  return searched_with_minima(values, type == WeightType::kQ4K ? 15 : 31);
}

double squared_error(const float* values, const float* others, int count) {
  double sum = 0;
  for (int i = 0; i < count; ++i) sum += std::pow(static_cast<double>(values[i]) - others[i], 2);
  return sum;
}

}  // namespace headrace::testing_support
