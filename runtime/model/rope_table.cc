// Rotary frequencies: default, linear, Llama 3 and YaRN (arXiv 2309.00071, section 3.2 and appendix A). The order of
// f32 operations is that of the reference implementation (transformers, modeling_rope_utils), so tables agree exactly
// or within a rounding.
#include <algorithm>
#include <cmath>
#include <numbers>

#include "cache/base.h"
#include "runtime/model/config.h"

namespace headrace {
namespace {

// theta^(2i / head_dim) in f32. As in the reference, the exponent is rounded to f32 first.
std::vector<float> wave_lengths(double theta, int64_t head_dim) {
  std::vector<float> lengths(static_cast<size_t>(head_dim / 2));
  const double base = static_cast<float>(theta);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    lengths[i] = static_cast<float>(std::pow(base, static_cast<double>(exponent)));
  }
  return lengths;
}

void scale_llama3(const RopeConfig& rope, double original, std::vector<float>* inv_freq) {
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor),
              span = static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
  const float low_length = static_cast<float>(original / rope.low_freq_factor);
  const float high_length = static_cast<float>(original / rope.high_freq_factor);
  for (float& frequency : *inv_freq) {
    const float length = 1.0f / frequency * static_cast<float>(2 * std::numbers::pi);
    if (length < high_length) continue;
    if (length > low_length) {
      frequency /= factor;
      continue;
    }
    const float smooth = (1.0f / length * static_cast<float>(original) - low) / span;
    frequency = (1 - smooth) * frequency / factor + smooth * frequency;
  }
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

float yarn_scale(const RopeConfig& rope) {
  if (rope.attention_factor != 0) return static_cast<float>(rope.attention_factor);
  if (rope.mscale != 0 && rope.mscale_all_dim != 0)
    return static_cast<float>(yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim));
  return static_cast<float>(yarn_mscale(rope.factor, 1));
}

// A linear ramp blends the kept frequency at dimension `low` with the interpolated one at `high`.
void scale_yarn(const RopeConfig& rope, double original, int64_t head_dim, std::vector<float>* inv_freq) {
  const auto dimension = [&](double rotations) {
    return static_cast<double>(head_dim) * std::log(original / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = dimension(rope.beta_fast), high = dimension(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  const std::vector<float> lengths = wave_lengths(rope.theta, head_dim);
  for (size_t i = 0; i < inv_freq->size(); ++i) {
    const float ramp =
        std::clamp((static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f, 1.0f);
    const float kept = 1 - ramp;
    const float interpolated = 1.0f / (static_cast<float>(rope.factor) * lengths[i]);
    (*inv_freq)[i] = interpolated * (1 - kept) + (1.0f / lengths[i]) * kept;
  }
}

}  // namespace

RopeTable make_rope_table(const RopeConfig& rope, const RopeSizes& sizes) {
  const int64_t dims = sizes.rotary_dims == 0 ? sizes.head_dim : sizes.rotary_dims;
  CHECK(dims > 0 && dims % 2 == 0 && dims <= sizes.head_dim, "dims=", dims, " head_dim=", sizes.head_dim);
  RopeTable table;
  table.inv_freq = wave_lengths(rope.theta, dims);
  for (float& value : table.inv_freq) value = 1.0f / value;
  const double original =
      static_cast<double>(rope.original_max_positions > 0 ? rope.original_max_positions : sizes.max_positions);
  switch (rope.scaling) {
    case RopeScaling::kNone:
      break;
    case RopeScaling::kLinear:
      for (float& value : table.inv_freq) value /= static_cast<float>(rope.factor);
      break;
    case RopeScaling::kLlama3:
      scale_llama3(rope, original, &table.inv_freq);
      break;
    case RopeScaling::kYarn:
      scale_yarn(rope, original, dims, &table.inv_freq);
      table.scale = yarn_scale(rope);
      break;
  }
  if (!rope.frequency_factors.empty()) {
    CHECK(rope.frequency_factors.size() == table.inv_freq.size(), "factors=", rope.frequency_factors.size());
    for (size_t i = 0; i < table.inv_freq.size(); ++i) table.inv_freq[i] /= rope.frequency_factors[i];
  }
  if (rope.turning_dims > 0) {
    CHECK(rope.turning_dims <= dims, "turning_dims=", rope.turning_dims);
    std::fill(table.inv_freq.begin() + rope.turning_dims / 2, table.inv_freq.end(), 0.0f);
  }
  table.inv_freq.resize(static_cast<size_t>(sizes.head_dim / 2));  // frequency 0: the others pass
  return table;
}

}  // namespace headrace
