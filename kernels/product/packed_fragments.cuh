// Converts packed weights in memory to operand A of the tensor cores, lane by lane (kernels/weights/cuda_layout.h): q
// as a number. Scales and minima are applied to the sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/instructions.cuh"
#include "kernels/product/packed.h"
#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

template <WeightType kType>
struct Kind {
  static constexpr PackedKind kKind = packed_kind(kType);
  static constexpr int kBits = kKind.bits;
  static constexpr ScaleKind kScales = kKind.scales;
  static constexpr bool kLevels = kKind.levels, kGrid = kKind.grid, kWord = has_word(kScales), kFloats = kKind.floats;
  static constexpr bool kTwoScales = is_narrow(kScales), kNarrow = kTwoScales && !kGrid;  // the order of columns
  static constexpr WeightType kWeight = kType;
};
// Calls body(Kind) for a type. Each kernel has one of the sets: the types of most files, the others, those with grids
// (packed.h), or the one of floating-point numbers, which is also among the others.
struct UsualKinds {
  template <typename Body>
  __device__ static void with(WeightType type, const Body& body) {
    switch (type) {
      case WeightType::kQ4_0:
        return body(Kind<WeightType::kQ4_0>{});
      case WeightType::kQ4_1:
        return body(Kind<WeightType::kQ4_1>{});
      case WeightType::kQ4K:
        return body(Kind<WeightType::kQ4K>{});
      case WeightType::kQ5_0:
        return body(Kind<WeightType::kQ5_0>{});
      case WeightType::kQ5_1:
        return body(Kind<WeightType::kQ5_1>{});
      case WeightType::kQ5K:
        return body(Kind<WeightType::kQ5K>{});
      case WeightType::kQ6K:
        return body(Kind<WeightType::kQ6K>{});
      case WeightType::kQ8_0:
        return body(Kind<WeightType::kQ8_0>{});
      default:
        return body(Kind<WeightType::kBF16>{});
    }
  }
};
struct OtherKinds {
  template <typename Body>
  __device__ static void with(WeightType type, const Body& body) {
    switch (type) {
      case WeightType::kQ2K:
        return body(Kind<WeightType::kQ2K>{});
      case WeightType::kQ3K:
        return body(Kind<WeightType::kQ3K>{});
      case WeightType::kIQ4NL:
        return body(Kind<WeightType::kIQ4NL>{});
      case WeightType::kMXFP4:
        return body(Kind<WeightType::kMXFP4>{});
      default:
        return body(Kind<WeightType::kIQ4XS>{});
    }
  }
};
struct FloatKinds {  // of groups
  template <typename Body>
  __device__ static void with(WeightType, const Body& body) {
    body(Kind<WeightType::kMXFP4>{});
  }
};
struct GridKinds {
  template <typename Body>
  __device__ static void with(WeightType type, const Body& body) {
    switch (type) {
      case WeightType::kIQ2XXS:
        return body(Kind<WeightType::kIQ2XXS>{});
      case WeightType::kIQ2XS:
        return body(Kind<WeightType::kIQ2XS>{});
      case WeightType::kIQ2S:
        return body(Kind<WeightType::kIQ2S>{});
      case WeightType::kIQ3XXS:
        return body(Kind<WeightType::kIQ3XXS>{});
      default:
        return body(Kind<WeightType::kIQ3S>{});
    }
  }
};

// ---- Loads ----------------------------------------------------------------------------------------------------------

// A step of the model reads its weights once: they must not evict x and sums from the caches. If several blocks of rows
// read them, the caches keep them.
__device__ inline uint64_t weight_policy(bool read_once) {
  uint64_t policy;
  if (read_once) {
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}
__device__ inline uint4 load_four(const char* p, uint64_t policy) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %5;"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p), "l"(policy));
  return v;
}
__device__ inline uint2 load_two(const char* p, uint64_t policy) {
  uint2 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b32 {%0,%1}, [%2], %3;"
               : "=r"(v.x), "=r"(v.y)
               : "l"(p), "l"(policy));
  return v;
}
__device__ inline uint32_t load_word(const char* p, uint64_t policy) {
  uint32_t v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %0, [%1], %2;" : "=r"(v) : "l"(p), "l"(policy));
  return v;
}

__device__ inline uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// A lane's weights of one tile's step of 64 columns; with 2 and 3 bits, two words of main[0].
template <int kBits>
struct RawStep {
  static constexpr int kMain = kBits == 16 ? 4 : kBits == 8 ? 2 : 1;
  uint4 main[kMain];
  uint2 extra;
};

HEADRACE_BOTH constexpr int main_lane_bytes(int bits) { return bits < 4 ? 8 : 16; }
HEADRACE_BOTH constexpr int extra_lane_bytes(int bits) { return bits == 3 || bits == 5 ? 4 : 8; }

// A lane's addresses of a tile's steps and records.
template <int kBits>
struct TileSource {
  const char *main, *extra, *scales;
  const char* high;  // of a plain part: row g + 8, `main` being row g
  int first_col, cols;

  TileSource() = default;
  __device__ TileSource(const PackedPart& part, const PackedKind& kind, const TilePlanes& planes, int tile, int k,
                        int lane) {
    if constexpr (kBits == 16) {
      const int row = tile * kTileRows + lane / 4, last = part.rows - 1;
      first_col = lane % 4 * 8;
      cols = k;
      main = static_cast<const char*>(part.data) + static_cast<int64_t>(min(row, last)) * k * 2;
      high = static_cast<const char*>(part.data) + static_cast<int64_t>(min(row + 8, last)) * k * 2;
    } else {
      const char* const base = static_cast<const char*>(part.data) + tile * planes.bytes;
      main = base + lane * main_lane_bytes(kBits);
      extra = base + planes.extra + lane * extra_lane_bytes(kBits);
      scales = base + planes.scales;
    }
  }

  // Advances by `steps` steps.
  __device__ void advance(int steps) {
    if constexpr (kBits == 16) {
      first_col += steps * kStepCols;
    } else {
      main += static_cast<int64_t>(steps) * main_step_bytes(kBits);
      extra += static_cast<int64_t>(steps) * extra_step_bytes(kBits);
    }
  }
  __device__ void load(int step, uint64_t policy, RawStep<kBits>& raw) const {
    if constexpr (kBits == 16) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int col = step * kStepCols + 32 * half + first_col;
        const bool inside = col < cols;
        raw.main[2 * half] = inside ? load_four(main + col * 2, policy) : make_uint4(0, 0, 0, 0);
        raw.main[2 * half + 1] = inside ? load_four(high + col * 2, policy) : make_uint4(0, 0, 0, 0);
      }
    } else {
#pragma unroll
      for (int i = 0; i < RawStep<kBits>::kMain; ++i) {
        const char* const from = main + step * main_step_bytes(kBits) + i * 512;
        if constexpr (kBits < 4) {
          const uint2 two = load_two(from, policy);
          raw.main[i] = make_uint4(two.x, two.y, 0, 0);
        } else {
          raw.main[i] = load_four(from, policy);
        }
      }
      if constexpr (kBits == 3 || kBits == 5) raw.extra.x = load_word(extra + step * extra_step_bytes(kBits), policy);
      if constexpr (kBits == 6) raw.extra = load_two(extra + step * extra_step_bytes(kBits), policy);
    }
  }
};

// A lane's words of a record: scales of two groups and what follows them.
struct alignas(16) RawScales {
  uint2 first, second;
};
template <ScaleKind kScales>
__device__ inline RawScales load_scales(const char* record, int lane, uint64_t policy) {
  RawScales raw{};
  const char* const after = record + record_words(kScales) * 4;
  if constexpr (is_wide(kScales)) {
    raw.first.x = load_word(record + lane * 4, policy);
  } else {
    raw.first = load_two(record + lane * 8, policy);
  }
  if constexpr (kScales == ScaleKind::kHalfMin) raw.second = load_two(after + lane * 8, policy);
  if constexpr (kScales == ScaleKind::kSixBits || kScales == ScaleKind::kFourBits)
    raw.second = load_two(after + lane / 4 * 8, policy);
  if constexpr (is_signed_narrow(kScales) || is_signed_wide(kScales))
    raw.second.x = load_word(after + lane / 4 * 4, policy);
  if constexpr (has_word(kScales)) raw.second.y = load_word(record + lane_word(kScales, lane) * 4, policy);
  return raw;
}

// ---- From bits to fragments -----------------------------------------------------------------------------------------

__device__ inline float2 halves_of(uint32_t word) { return __half22float2(*reinterpret_cast<const __half2*>(&word)); }
template <int kByte>
__device__ inline float byte_of(uint32_t word) {  // 2^23 + byte, made of the bits, less 2^23
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650 | kByte)) - 0x1p23f;
}
__device__ inline uint32_t fma_pair(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}
// Two bf16 of the same value.
__device__ inline uint32_t pair_of_value(float value) { return pack(value, value, __nv_bfloat16{}); }

// A step's or (narrow scales) a group's eight row pairs in shared memory: another order of the pairs for each, so that
// a warp's stores and its loads spread over the banks.
__device__ inline int scale_slot(int group, int g) { return group * 8 + (g ^ (group & 6)); }

// The scales of a record in f32, times 64 (kExponent: as they are). By scale_slot(): narrow ones for each group rows g
// and g + 8 of the first 16 columns, then of the second; else for each even group rows g and g + 8 of this group, then
// of the next.
template <ScaleKind kScales>
__device__ inline void stage_scales(const RawScales& raw, int lane, float4* to) {
  const int g = lane / 4, t = lane % 4;
  if constexpr (is_signed_narrow(kScales)) {
    const float2 d = halves_of(raw.second.x);
    const float low = d.x * 64.0f, high = d.y * 64.0f;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t s = (e == 0 ? raw.first.x : raw.first.y) ^ 0x80808080u;  // s + 128
      to[scale_slot(2 * t + e, g)] = make_float4((byte_of<0>(s) - 128.0f) * low, (byte_of<2>(s) - 128.0f) * high,
                                                 (byte_of<1>(s) - 128.0f) * low, (byte_of<3>(s) - 128.0f) * high);
    }
  } else if constexpr (kScales == ScaleKind::kFourBits) {
    const float low = halves_of(raw.second.x).x * 64.0f, high = halves_of(raw.second.y).x * 64.0f;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const uint32_t s = (e == 0 ? raw.first.x : raw.first.y) & 0x0f0f0f0fu;
      to[scale_slot(2 * t + e, g)] =
          make_float4(byte_of<0>(s) * low, byte_of<2>(s) * high, byte_of<1>(s) * low, byte_of<3>(s) * high);
    }
  } else if constexpr (kScales == ScaleKind::kExponent) {
    const auto scale = [&](int byte) { return __uint_as_float(exponent_scale(raw.first.x >> 8 * byte & 255)); };
    to[scale_slot(2 * t, g)] = make_float4(scale(0), scale(1), scale(2), scale(3));
  } else if constexpr (is_signed_wide(kScales)) {
    const float2 d = halves_of(raw.second.x);
    const float low = d.x * 64.0f, high = d.y * 64.0f;
    const uint32_t s = raw.first.x ^ 0x80808080u;  // s + 128
    to[scale_slot(2 * t, g)] = make_float4((byte_of<0>(s) - 128.0f) * low, (byte_of<1>(s) - 128.0f) * high,
                                           (byte_of<2>(s) - 128.0f) * low, (byte_of<3>(s) - 128.0f) * high);
  } else if constexpr (kScales == ScaleKind::kSixBits) {
    const float low = halves_of(raw.second.x).x * 64.0f, high = halves_of(raw.second.y).x * 64.0f;
    to[scale_slot(2 * t, g)] = make_float4(byte_of<0>(raw.first.x) * low, byte_of<2>(raw.first.x) * high,
                                           byte_of<0>(raw.first.y) * low, byte_of<2>(raw.first.y) * high);
  } else {
    const float2 first = halves_of(raw.first.x), second = halves_of(raw.first.y);
    to[scale_slot(2 * t, g)] = make_float4(first.x * 64.0f, first.y * 64.0f, second.x * 64.0f, second.y * 64.0f);
  }
}

// The levels of the four 4-bit weights in the lower half of `weights`. A byte permutation looks up a weight's lower
// three bits in eight levels, so each weight has a candidate of the lower and one of the upper eight; `which` selects
// one.
__device__ inline uint32_t four_levels(uint32_t weights, uint32_t which) {
  return __byte_perm(__byte_perm(level_word(0), level_word(1), weights),
                     __byte_perm(level_word(2), level_word(3), weights), which);
}

// The levels of a word of 4-bit weights, in the places that 8-bit weights have in word 0 (rows g) or 1 (rows g + 8) of
// the same step.
__device__ inline uint2 levels_of(uint32_t bits) {
  const uint32_t which = (bits >> 1 & 0x44444444u) + 0x32103210u;  // weight i's candidate is byte i or 4 + i
  const uint32_t first = four_levels(bits, which), last = four_levels(bits >> 16, which >> 16);
  return make_uint2(__byte_perm(first, last, 0x6420), __byte_perm(first, last, 0x7531));  // even and odd weights
}

// Two weights of MXFP4, twice their numbers: at these places of a bf16 the bits are 2^-126 of a number.
__device__ inline uint32_t float_pair(uint32_t word, int s, int hi) {
  const int at = 8 * s + 4 * hi;  // of the bits in each half of the word
  const uint32_t magnitude = (at <= 6 ? word << (6 - at) : word >> (at - 6)) & 0x01c001c0u;
  return fma_pair(magnitude | (word << (12 - at) & 0x80008000u), 254u << 7 | 254u << 23, 0x80008000u);
}

// Operand A of the two steps of the tensor cores over one half (32 columns) of a step: (q - zero) / 64, exact in bf16.
// Bits below 256 are a multiple of 2^-133 as a bf16, so one multiplication makes a number of them. zero: of the type,
// as a pair of -zero / 64.
template <typename Kind>
__device__ inline void fragments_of(const RawStep<Kind::kBits>& raw, int half, uint32_t zero, uint32_t (&a)[2][4]) {
  constexpr int kBits = Kind::kBits;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int hi = 0; hi < 2; ++hi) {
        uint32_t& to = a[u][2 * s + hi];
        if constexpr (kBits == 16) {
          to = word_of(raw.main[2 * half + hi], 2 * u + s);
        } else if constexpr (Kind::kFloats) {
          to = float_pair(word_of(raw.main[0], 2 * half + u), s, hi);
        } else {
          const uint32_t main = kBits == 8  ? word_of(raw.main[kBits == 8 ? half : 0], 2 * u + hi)
                                : kBits < 4 ? word_of(raw.main[0], half)
                                            : word_of(raw.main[0], 2 * half + u);
          const uint32_t extra = kBits == 6 && half == 1 ? raw.extra.y : raw.extra.x;
          const uint32_t power = 127 + 127 - (Kind::kLevels ? 0 : pair_shift(kBits, s, hi));  // 2^127 or less
          uint32_t pair;
          if constexpr (Kind::kLevels) {
            const uint2 levels = levels_of(main);
            pair = pair_of<8>(hi == 0 ? levels.x : levels.y, 0, half, u, s, hi);
          } else {
            pair = pair_of<kBits>(main, extra, half, u, s, hi);
          }
          to = fma_pair(pair, power << 7 | power << 23, zero);
        }
      }
    }
  }
}

// ---- Minima ---------------------------------------------------------------------------------------------------------

// The sum of 32 columns of x for eight groups or rows, by the tensor cores: lane 4 g + t brings the columns 8 t to 8 t
// + 7 of number g. Lanes 0 to 3 get the word of number 2 t, lanes 4 to 7 that of 2 t + 1: the sum rounded to bf16, and
// above it what is left, rounded.
__device__ inline uint32_t word_of_sum(const uint4& x, int lane) {
  const uint32_t ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  float sums[4] = {};
  multiply(sums, ones, x.x, x.y, __nv_bfloat16{});
  multiply(sums, ones, x.z, x.w, __nv_bfloat16{});
  const float sum = lane < 4 ? sums[0] : sums[1];
  const float rounded = __bfloat162float(__float2bfloat16_rn(sum));
  return pack(rounded, sum - rounded, __nv_bfloat16{});
}

// Operand A of the record's minima: a register has one group's minimum twice, for the two parts of a sum of x.
// Registers 0 and 1 are rows g and g + 8 of group 2 t, 2 and 3 those of the next. f16 takes two terms.
struct Minima {
  uint32_t a[2][4];
  float low, high;  // what to multiply the product by
};
template <ScaleKind kScales>
__device__ inline Minima minima_of(const RawScales& raw) {
  Minima minima{};
  if constexpr (kScales == ScaleKind::kSixBits) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t bits = __byte_perm(i < 2 ? raw.first.x : raw.first.y, 0, i % 2 == 0 ? 0x4141 : 0x4343);
      minima.a[0][i] = fma_pair(bits, 0x7f007f00u, 0);
    }
    minima.low = halves_of(raw.second.x).y * -64.0f;
    minima.high = halves_of(raw.second.y).y * -64.0f;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 m = halves_of(i < 2 ? raw.second.x : raw.second.y);
      const float value = i % 2 == 0 ? m.x : m.y, rounded = __bfloat162float(__float2bfloat16_rn(value));
      minima.a[0][i] = pair_of_value(rounded);
      minima.a[1][i] = pair_of_value(value - rounded);
    }
    minima.low = minima.high = 1.0f;
  }
  return minima;
}

// The same for kFourBits, as a lane's operand A of 16 columns: a register has the minimum of its row twice. word: the
// group's; second: whether these are the group's second 16 columns. The minima are multiplied by 16 / 64.
__device__ inline void narrow_minima(uint32_t word, bool second, uint32_t (&a)[4]) {
  const uint32_t low = __byte_perm(word, 0, second ? 0x4141 : 0x4040) & 0x00f000f0u;
  const uint32_t high = __byte_perm(word, 0, second ? 0x4343 : 0x4242) & 0x00f000f0u;
  a[0] = a[2] = fma_pair(low, 0x7f007f00u, 0);
  a[1] = a[3] = fma_pair(high, 0x7f007f00u, 0);
}

}  // namespace headrace::kernels::cuda
