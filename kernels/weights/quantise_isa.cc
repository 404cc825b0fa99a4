// Quantises blocks. Many scales are tried at once, one a lane, and each lane adds its sums in the order of the weights,
// by products and sums that are rounded one by one. So every instruction set writes the same bytes.
#include "kernels/weights/cpu_isa.h"
#include "kernels/weights/levels.h"

namespace headrace::kernels::HEADRACE_ISA_NAMESPACE {

namespace {

constexpr int kBlock = 256;  // weights of a block of Q4_K, Q5_K and Q6_K

// Half to even; of numbers far below 2^22.
HEADRACE_SIMD vf nearest(vf v) {
  const vf magic = splat(0x1.8p23f);
  return (v + magic) - magic;
}
HEADRACE_SIMD float at_least(float v, float low) { return v < low ? low : v; }
HEADRACE_SIMD float at_most(float v, float high) { return v > high ? high : v; }

HEADRACE_SIMD uint16_t half_of(float value) { return narrow_f16(splat(value))[0]; }
HEADRACE_SIMD float float_of_half(uint16_t bits) { return widen_f16(vh{} + bits)[0]; }
HEADRACE_SIMD void put_half(uint16_t bits, uint8_t* to) { memcpy(to, &bits, sizeof bits); }
constexpr uint16_t kNan = 0x7e00;
constexpr float kBeyond = 1e9f;  // more than any scale in f16 reaches; the squares of what is less do not overflow

struct Range {
  float low, high;
};
HEADRACE_SIMD Range range_of(const float* x, int count) {
  vf low = load(x), high = low;
  for (int i = kLanes; i < count; i += kLanes) {
    low = min(low, load(x + i));
    high = max(high, load(x + i));
  }
  return {-largest(-low), largest(high)};
}
HEADRACE_SIMD bool all_finite(const float* x, int count) {
  vi wrong = {};
  for (int i = 0; i < count; i += kLanes) {
    wrong |= vi((bits_of(load(x + i)) & 0x7f800000u) == 0x7f800000u);
  }
  int32_t lanes[kLanes], any = 0;
  memcpy(lanes, &wrong, sizeof lanes);
  for (const int32_t lane : lanes) any |= lane;
  return any == 0;
}

// kCount candidates, one a lane.
template <int kCount>
struct Lanes {
  static constexpr int kVectors = kCount / kLanes;
  vf v[kVectors];

  HEADRACE_INLINE static vf numbers(int vector) { return to_float(lane_numbers() + vector * kLanes); }
  HEADRACE_INLINE float at(int i) const {
    float lanes[kCount];
    memcpy(lanes, v, sizeof lanes);
    return lanes[i];
  }
  // The place of the smallest; among equal ones, always the same.
  HEADRACE_INLINE int smallest() const {
    float lanes[kCount];
    int places[kCount];
    memcpy(lanes, v, sizeof lanes);
    for (int i = 0; i < kCount; ++i) places[i] = i;
    for (int width = kCount / 2; width > 0; width /= 2) {
      for (int i = 0; i < width; ++i) {
        const bool less = lanes[i + width] < lanes[i];
        lanes[i] = less ? lanes[i + width] : lanes[i];
        places[i] = less ? places[i + width] : places[i];
      }
    }
    return places[0];
  }
};

// ---- Q8_0 -----------------------------------------------------------------------------------------------------------

// scale = largest / 127; a level is the weight divided by it, halves rounded away from zero.
void quantise_q8_0(const float* x, uint8_t* block) {
  constexpr int kWeights = 32;
  const Range range = range_of(x, kWeights);
  const float largest = at_least(-range.low, range.high), scale = largest / 127;
  // Below 2^-126, where 1 / scale may overflow, the scale is 0 in f16 anyway.
  const float inverse = scale < 0x1p-126f ? 0 : 1 / scale;
  const bool finite = all_finite(x, kWeights);
  put_half(finite ? half_of(scale) : kNan, block);
  for (int i = 0; i < kWeights; i += kLanes) {
    const vf level = finite ? load(x + i) * inverse : zero();
    const vf size = select(level < 0.0f, -level, level);
    const vi whole = __builtin_convertvector(size, vi);
    const vi rounded = whole - vi(size - to_float(whole) >= 0.5f);
    const vi q = vi(level < 0.0f) ? -rounded : rounded;
    for (int lane = 0; lane < kLanes; ++lane) block[2 + i + lane] = static_cast<uint8_t>(q[lane]);
  }
}

// ---- Q4_K and Q5_K --------------------------------------------------------------------------------------------------

// A weight of a group is scale * q - minimum, with q from 0 to kTop, neither of them negative.
constexpr int kGroups = 8, kGroupWeights = 32;
struct Fit {
  float scale, minimum;
};

// Tries scales around the one that spans the group's range. For each, the weights' levels give the scale and the
// minimum that fit them best (least squares).
template <int kTop>
Fit fit_group(const float* x) {
  using Tries = Lanes<16>;
  constexpr float kFewest = -1.2f, kStep = 0.15f;  // levels more than kTop that span the range
  constexpr float kCount = kGroupWeights;
  const Range range = range_of(x, kGroupWeights);
  const float low = at_most(range.low, 0), width = range.high - low;
  // A range so narrow has a scale of 0 in f16, and 1 / width may overflow.
  const float a_level = width > 0x1p-100f ? 1 / width : 0;
  Tries inverse, q1{}, q2{}, yq{};
  for (int v = 0; v < Tries::kVectors; ++v) {
    inverse.v[v] = (Tries::numbers(v) * kStep + (kTop + kFewest)) * a_level;
  }
  float sums[4] = {};  // of y = x - low
  for (int i = 0; i < kGroupWeights; ++i) {
    const float y = x[i] - low;
    sums[i % 4] += y;
    for (int v = 0; v < Tries::kVectors; ++v) {
      const vf q = nearest(min(splat(y) * inverse.v[v], splat(kTop)));
      q1.v[v] += q;
      q2.v[v] += q * q;
      yq.v[v] += q * y;
    }
  }
  const float y1 = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  Tries scale, offset, error;
  for (int v = 0; v < Tries::kVectors; ++v) {
    const vf determinant = q2.v[v] * kCount - q1.v[v] * q1.v[v];
    const vf free = select(determinant > 0.0f, (yq.v[v] * kCount - q1.v[v] * y1) / determinant, zero());
    const vf free_offset = (y1 - free * q1.v[v]) / kCount;
    const vf alone = select(q2.v[v] > 0.0f, (yq.v[v] + q1.v[v] * low) / q2.v[v], zero());
    const vi positive = vi(free_offset + low > 0.0f);  // there is no such minimum: 0 is the nearest
    const vf s = select(positive, alone, free), b = select(positive, splat(-low), free_offset);
    scale.v[v] = s;
    offset.v[v] = b;
    error.v[v] = s * (s * q2.v[v] + 2 * (b * q1.v[v] - yq.v[v])) + b * (b * kCount - 2 * y1);
  }
  const int best = error.smallest();
  return {at_least(scale.at(best), 0), at_least(-(offset.at(best) + low), 0)};
}

struct SixBits {
  int scale, minimum;
};
HEADRACE_SIMD vf six_bits(vf v) { return min(max(v, zero()), splat(63)); }
// Of the numbers near `fit`, in units of d and dmin, those with the least error.
template <int kTop>
SixBits round_fit(const float* x, const Fit& fit, float d, float dmin) {
  using Tries = Lanes<16>;  // the last is the first again
  constexpr float kScaleSteps[] = {-1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, -1};
  constexpr float kMinimumSteps[] = {-2, -1, 0, 1, 2, -2, -1, 0, 1, 2, -2, -1, 0, 1, 2, -2};
  const float scale = d > 0 ? fit.scale / d : 0, minimum = dmin > 0 ? fit.minimum / dmin : 0;
  Tries scales, minima, a, b, inverse, error{};
  for (int v = 0; v < Tries::kVectors; ++v) {
    scales.v[v] = six_bits(nearest(splat(at_most(scale, 63))) + load(kScaleSteps + v * kLanes));
    minima.v[v] = six_bits(nearest(splat(at_most(minimum, 63))) + load(kMinimumSteps + v * kLanes));
    a.v[v] = scales.v[v] * d;
    b.v[v] = minima.v[v] * dmin;
    inverse.v[v] = select(a.v[v] > 0.0f, 1.0f / a.v[v], zero());
  }
  for (int i = 0; i < kGroupWeights; ++i) {
    for (int v = 0; v < Tries::kVectors; ++v) {
      const vf y = b.v[v] + x[i];
      const vf q = nearest(max(min(y * inverse.v[v], splat(kTop)), zero()));
      const vf off = y - q * a.v[v];
      error.v[v] += off * off;
    }
  }
  const int best = error.smallest();
  return {static_cast<int>(scales.at(best)), static_cast<int>(minima.at(best))};
}

template <int kTop>
void levels_of(const float* x, float scale, float minimum, int32_t* levels) {
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (int i = 0; i < kGroupWeights; i += kLanes) {
    const vf q = nearest(max(min((load(x + i) + minimum) * inverse, splat(kTop)), zero()));
    const vi whole = __builtin_convertvector(q, vi);
    memcpy(levels + i, &whole, sizeof whole);
  }
}

// As unpack_six_bits() reads them.
void pack_six_bits(const SixBits* six, uint8_t* packed) {
  for (int i = 0; i < 4; ++i) {
    const SixBits &first = six[i], &second = six[i + 4];
    packed[i] = static_cast<uint8_t>(first.scale | second.scale >> 4 << 6);
    packed[i + 4] = static_cast<uint8_t>(first.minimum | second.minimum >> 4 << 6);
    packed[i + 8] = static_cast<uint8_t>((second.scale & 15) | (second.minimum & 15) << 4);
  }
}

template <int kBits>
void quantise_nibbles(const float* x, uint8_t* block) {
  constexpr int kTop = (1 << kBits) - 1, kFifth = 16, kLow = kFifth + (kBits == 5 ? 32 : 0);
  memset(block, 0, kLow + kBlock / 2);
  const Range range = range_of(x, kBlock);
  if (!all_finite(x, kBlock) || at_least(-range.low, range.high) > kBeyond) return put_half(kNan, block);
  Fit fits[kGroups];
  float scale = 0, minimum = 0;
  for (int g = 0; g < kGroups; ++g) {
    fits[g] = fit_group<kTop>(x + g * kGroupWeights);
    scale = at_least(scale, fits[g].scale);
    minimum = at_least(minimum, fits[g].minimum);
  }
  const uint16_t d_bits = half_of(scale / 63), dmin_bits = half_of(minimum / 63);
  put_half(d_bits, block);
  put_half(dmin_bits, block + 2);
  const float d = float_of_half(d_bits), dmin = float_of_half(dmin_bits);
  if (d_bits >= 0x7c00 || dmin_bits >= 0x7c00) return;  // beyond f16: the weights are infinite or NaN
  SixBits six[kGroups];
  for (int g = 0; g < kGroups; ++g) {
    const float* const group = x + g * kGroupWeights;
    six[g] = round_fit<kTop>(group, fits[g], d, dmin);
    int32_t q[kGroupWeights];
    levels_of<kTop>(group, d * static_cast<float>(six[g].scale), dmin * static_cast<float>(six[g].minimum), q);
    uint8_t* const low = block + kLow + g / 2 * kGroupWeights;
    for (int i = 0; i < kGroupWeights; ++i) low[i] = static_cast<uint8_t>(low[i] | (q[i] & 15) << (g % 2 * 4));
    if (kBits == 4) continue;
    for (int i = 0; i < kGroupWeights; ++i) {
      block[kFifth + i] = static_cast<uint8_t>(block[kFifth + i] | q[i] >> 4 << g);
    }
  }
  pack_six_bits(six, block + 4);
}

// ---- Q6_K -----------------------------------------------------------------------------------------------------------

// A weight of a run is d * s * q, with q from -32 to 31 and s a signed byte. The candidates for s are those that give
// the largest weight a level of about 32.
constexpr int kRuns = 16, kRunWeights = 16, kTopRunScale = 117;

int best_run_scale(const float* x, const Range& range, float d) {
  using Tries = Lanes<16>;
  const bool below = -range.low > range.high;  // the weight of largest magnitude gets level -32; there is no +32
  const vf middle = nearest(splat((below ? -range.low : range.high) / (d * 32)));
  Tries scales, a, inverse, error{};
  for (int v = 0; v < Tries::kVectors; ++v) {
    const vf size = min(max(middle + (Tries::numbers(v) - 5.0f), splat(1)), splat(127));
    scales.v[v] = below ? size : -size;
    a.v[v] = scales.v[v] * d;
    inverse.v[v] = 1.0f / a.v[v];
  }
  for (int i = 0; i < kRunWeights; ++i) {
    for (int v = 0; v < Tries::kVectors; ++v) {
      const vf q = nearest(max(min(inverse.v[v] * x[i], splat(31)), splat(-32)));
      const vf off = x[i] - q * a.v[v];
      error.v[v] += off * off;
    }
  }
  return static_cast<int>(scales.at(error.smallest()));
}

void quantise_q6_k(const float* x, uint8_t* block) {
  constexpr int kHigh = 128, kScales = 192, kD = 208;
  memset(block, 0, kD + 2);
  if (!all_finite(x, kBlock)) return put_half(kNan, block + kD);
  Range ranges[kRuns];
  float most = 0;
  for (int r = 0; r < kRuns; ++r) {
    ranges[r] = range_of(x + r * kRunWeights, kRunWeights);
    most = at_least(most, at_least(-ranges[r].low, ranges[r].high));
  }
  const uint16_t d_bits = half_of(most / (32 * kTopRunScale));
  put_half(d_bits, block + kD);
  const float d = float_of_half(d_bits);
  if (d == 0) return;
  for (int r = 0; r < kRuns; ++r) {
    const float* const run = x + r * kRunWeights;
    const int scale = d_bits < 0x7c00 ? best_run_scale(run, ranges[r], d) : 1;
    block[kScales + r] = static_cast<uint8_t>(scale);
    const float inverse = 1 / (d * static_cast<float>(scale));
    const int number = r / 2, half = number / 4, in = number % 4;
    uint8_t* const low = block + 64 * half + 32 * (in % 2) + r % 2 * kRunWeights;
    uint8_t* const high = block + kHigh + 32 * half + r % 2 * kRunWeights;
    for (int i = 0; i < kRunWeights; i += kLanes) {
      const vi q = __builtin_convertvector(nearest(max(min(load(run + i) * inverse, splat(31)), splat(-32))), vi) + 32;
      for (int lane = 0; lane < kLanes; ++lane) {
        low[i + lane] = static_cast<uint8_t>(low[i + lane] | (q[lane] & 15) << (in / 2 * 4));
        high[i + lane] = static_cast<uint8_t>(high[i + lane] | q[lane] >> 4 << (2 * in));
      }
    }
  }
}

void quantise(WeightType type, const float* values, int64_t count, void* blocks) {
  auto* out = static_cast<uint8_t*>(blocks);
  const auto each = [&](void (*one)(const float*, uint8_t*), int weights, int bytes) {
    for (int64_t i = 0; i < count; ++i) one(values + i * weights, out + i * bytes);
  };
  switch (type) {
    case WeightType::kQ8_0:
      return each(quantise_q8_0, 32, 34);
    case WeightType::kQ4K:
      return each(quantise_nibbles<4>, kBlock, 144);
    case WeightType::kQ5K:
      return each(quantise_nibbles<5>, kBlock, 176);
    default:
      return each(quantise_q6_k, kBlock, 210);
  }
}

}  // namespace

const QuantiseKernels quantise_kernels = {quantise};

}  // namespace headrace::kernels::HEADRACE_ISA_NAMESPACE
