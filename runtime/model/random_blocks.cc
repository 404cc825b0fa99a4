#include "runtime/model/random_blocks.h"

#include <cmath>
#include <cstring>

#include "runtime/base/random.h"

namespace headrace {
namespace {

constexpr int64_t kMaxBlockBytes = 256;

// The first two moments of a number whose bits are random.
struct Moments {
  double mean, square;
};
// One of [low, high], each equally likely.
constexpr Moments uniform(double low, double high) {
  const double mean = (low + high) / 2, count = high - low + 1;
  return {mean, mean * mean + (count * count - 1) / 12};
}

// A weight is scale * group * level, and plus or minus min * group: levels and groups are random bits, the block's
// scale and min are f16 numbers.
struct Form {
  int64_t scale_at, min_at;  // min_at < 0: the type has none
  double min_factor;         // min = min_factor * scale * level.mean makes the weights' mean 0
  Moments group, level;
};

Form form_of(WeightType type) {
  constexpr Moments kNoGroup = {1, 1}, kGroup6 = uniform(0, 63), kGroup8 = uniform(-128, 127);
  switch (type) {
    case WeightType::kQ4_0:
      return {0, -1, 0, kNoGroup, uniform(-8, 7)};
    case WeightType::kQ4_1:
      return {0, 2, -1, kNoGroup, uniform(0, 15)};
    case WeightType::kQ5_0:
      return {0, -1, 0, kNoGroup, uniform(-16, 15)};
    case WeightType::kQ5_1:
      return {0, 2, -1, kNoGroup, uniform(0, 31)};
    case WeightType::kQ8_0:
      return {0, -1, 0, kNoGroup, uniform(-128, 127)};
    case WeightType::kQ4K:
      return {0, 2, 1, kGroup6, uniform(0, 15)};
    case WeightType::kQ5K:
      return {0, 2, 1, kGroup6, uniform(0, 31)};
    case WeightType::kQ6K:
      return {208, -1, 0, kGroup8, uniform(-32, 31)};
    default:
      CHECK(false, weight_type_info(type).name, " has no blocks");
  }
}

// The scale that gives a variance of 1 / cols.
double scale_of(const Form& form, int64_t cols) {
  double variance = form.group.square * form.level.square;
  if (form.min_at >= 0) {
    const double level2 = form.level.mean * form.level.mean;
    variance += level2 * (form.group.square - 2 * form.group.mean * form.group.mean);
  }
  return 1 / std::sqrt(variance * static_cast<double>(cols));
}

uint16_t f16_bits(double value) { return f32_to_f16(static_cast<float>(value)).bits; }

void store(uint16_t bits, char* at) { std::memcpy(at, &bits, sizeof bits); }

}  // namespace

void draw_blocks(WeightType type, int64_t cols, uint64_t key, int64_t begin, int64_t end, void* out) {
  constexpr uint16_t kSign = 0x8000;
  const Form form = form_of(type);
  const auto bytes = static_cast<size_t>(weight_type_info(type).block_bytes);
  CHECK(bytes <= kMaxBlockBytes, weight_type_info(type).name);
  const double scale = scale_of(form, cols);
  const uint16_t scale_bits = f16_bits(scale), min_bits = f16_bits(form.min_factor * scale * form.level.mean);
  const size_t words = (bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t);
  uint64_t block[kMaxBlockBytes / sizeof(uint64_t)];
  char* const first = reinterpret_cast<char*>(block);
  char* to = static_cast<char*>(out);
  for (int64_t i = begin; i < end; ++i, to += bytes) {
    for (size_t w = 0; w < words; ++w) block[w] = random64(key, static_cast<uint64_t>(i) * words + w);
    uint16_t drawn = 0;  // without a min, the scale's sign is random, which takes away the mean
    if (form.min_at < 0) std::memcpy(&drawn, first + form.scale_at, sizeof drawn);
    store(static_cast<uint16_t>(scale_bits | (drawn & kSign)), first + form.scale_at);
    if (form.min_at >= 0) store(min_bits, first + form.min_at);
    std::memcpy(to, block, bytes);
  }
}

}  // namespace headrace
