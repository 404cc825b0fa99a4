// Rows g and g + 8 of a tile of a packed part (kernels/weights/cuda_layout.h), eight columns at a time: the words and
// scales of the tile belong to both. The values are those of packed_weight(). Device code.
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "kernels/weights/cuda_layout.h"
#include "kernels/weights/cuda_value.cuh"

namespace headrace::kernels::cuda {

// An integer below 2^16, less `zero`.
__device__ inline float small_to_float(uint32_t q, int zero) {
  return __fsub_rn(__uint_as_float(q | 0x4b000000u), 8388608.0f + static_cast<float>(zero));
}

// Of both rows, for some columns.
struct PairScales {
  float scale[2], minimum[2];
};

template <WeightType kType>
class PackedPair {
 public:
  __device__ PackedPair(const void* part, int64_t cols, int64_t row)
      : planes_(tile_planes(packed_kind(kType), cols)),
        tile_(static_cast<const char*>(part) + row / kTileRows * planes_.bytes),
        g_(static_cast<int>(row % kTileRows)) {}

  // col: a multiple of eight.
  __device__ void read(int at, float (&low)[kChunk], float (&high)[kChunk]) const {
    const auto col = static_cast<unsigned>(at);
    const unsigned step = col / kStepCols;
    const int half = static_cast<int>(col / 32 % 2), run = static_cast<int>(col % 32 / kChunk);
    const auto* const main = words_at(static_cast<int64_t>(step) * main_step_bytes(kKind.bits));
    const auto* const extra = words_at(planes_.extra + static_cast<int64_t>(step) * extra_step_bytes(kKind.bits));
    const PairScales scales = scales_of(col);
    if constexpr (kKind.grid) return read_grid(at, scales, low, high);
    uint2 pairs[2];  // of the first and second four columns, a word a row
    load_pairs(main, half, run, pairs);
#pragma unroll
    for (int four = 0; four < 2; ++four) {
      const int lane = lane_of(run, four), u = kNarrow ? run / 2 : four;
      uint32_t above = 0;
      if constexpr (has_extra(kKind.bits)) above = extra[kKind.bits == 6 ? lane * 2 + half : lane];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        unpack<0>(pairs[four].x, above, half, u, s, scales, low + 4 * four + 2 * s);
        unpack<1>(pairs[four].y, above, half, u, s, scales, high + 4 * four + 2 * s);
      }
    }
  }

 private:
  static constexpr PackedKind kKind = packed_kind(kType);
  static constexpr bool kNarrow = is_narrow(kKind.scales) && !kKind.grid;
  static constexpr bool kMinima = has_minima(kKind.scales) || kKind.scales == ScaleKind::kFourBits;

  __device__ const uint32_t* words_at(int64_t bytes) const { return reinterpret_cast<const uint32_t*>(tile_ + bytes); }

  __device__ int lane_of(int run, int four) const { return 4 * g_ + (kNarrow ? run % 2 * 2 + four : run); }

  __device__ void load_pairs(const uint32_t* main, int half, int run, uint2 (&pairs)[2]) const {
    if constexpr (kKind.bits == 8) {
      const uint4 all = *reinterpret_cast<const uint4*>(main + (half * 32 + lane_of(run, 0)) * 4);
      pairs[0] = make_uint2(all.x, all.y);
      pairs[1] = make_uint2(all.z, all.w);
    } else if constexpr (kKind.bits < 4) {
#pragma unroll
      for (int four = 0; four < 2; ++four) pairs[four].x = pairs[four].y = main[lane_of(run, four) * 2 + half];
    } else if constexpr (kNarrow) {
#pragma unroll
      for (int four = 0; four < 2; ++four) {
        pairs[four].x = pairs[four].y = main[lane_of(run, four) * 4 + 2 * half + run / 2];
      }
    } else {
      const uint2 both = *reinterpret_cast<const uint2*>(main + lane_of(run, 0) * 4 + 2 * half);
      pairs[0] = make_uint2(both.x, both.x);
      pairs[1] = make_uint2(both.y, both.y);
    }
  }

  // A run of a grid in each row.
  __device__ void read_grid(int col, const PairScales& scales, float (&low)[kChunk], float (&high)[kChunk]) const {
    static_assert(kChunk == 8);
#pragma unroll
    for (int hi = 0; hi < 2; ++hi) {
      const GridRun run = packed_run<kType>(tile_, planes_, g_ + 8 * hi, col);
      const float scale = __fmul_rn(scales.scale[hi], grid_factor(kType));
#pragma unroll
      for (int i = 0; i < kChunk; ++i) (hi == 0 ? low : high)[i] = __fmul_rn(scale, grid_level<kType>(run, i));
    }
  }

  // Two columns of row g + 8 kHi.
  template <int kHi>
  __device__ static void unpack(uint32_t word, uint32_t above, int half, int u, int s, const PairScales& scales,
                                float* values) {
    const uint32_t pair = pair_of<kKind.bits>(word, above, half, u, s, kHi) >> pair_shift(kKind.bits, s, kHi);
#pragma unroll
    for (int b = 0; b < 2; ++b) {
      uint32_t q = b == 0 ? pair & 0xffff : pair >> 16;
      if constexpr (kKind.levels) q = level_of(q);
      if constexpr (kKind.floats) {
        values[b] = __fmul_rn(scales.scale[kHi], static_cast<float>(float_level(q)));
      } else {
        values[b] = __fmul_rn(scales.scale[kHi], small_to_float(q, kKind.zero));
      }
      if constexpr (kMinima) values[b] = __fadd_rn(values[b], scales.minimum[kHi]);
    }
  }

  __device__ PairScales scales_of(unsigned col) const {
    constexpr ScaleKind kScales = kKind.scales;
    const auto* const record =
        words_at(planes_.scales + static_cast<int64_t>(col / kRecordCols) * record_bytes(kScales));
    const auto* const after = record + record_words(kScales);
    const int group = static_cast<int>(col % kRecordCols / 32), in_group = static_cast<int>(col % 32 / 16);
    constexpr bool kWide = is_wide(kScales);
    const uint32_t word = record[kWide ? wide_scale_word(g_, group) : scale_word(g_, group)];
    PairScales scales;
#pragma unroll
    for (int hi = 0; hi < 2; ++hi) {
      scales.minimum[hi] = 0.0f;
      if constexpr (kScales == ScaleKind::kHalf) {
        scales.scale[hi] = half_of(word, hi);
      } else if constexpr (kScales == ScaleKind::kHalfMin) {
        scales.scale[hi] = half_of(word, hi);
        scales.minimum[hi] = half_of(after[scale_word(g_, group)], hi);
      } else if constexpr (kScales == ScaleKind::kSixBits || kScales == ScaleKind::kFourBits) {
        constexpr bool kFour = kScales == ScaleKind::kFourBits;
        const uint32_t both = after[2 * g_ + hi], bits = word >> (16 * hi + (kFour ? 8 * in_group : 0));
        scales.scale[hi] = __fmul_rn(half_of(both, 0), small_to_float(bits & (kFour ? 15 : 255), 0));
        scales.minimum[hi] = -__fmul_rn(half_of(both, 1), small_to_float(kFour ? bits >> 4 & 15 : bits >> 8 & 255, 0));
      } else if constexpr (kScales == ScaleKind::kExponent) {
        scales.scale[hi] = __uint_as_float(exponent_scale(word >> (16 * (group % 2) + 8 * hi) & 255));
      } else {
        const int at = kWide ? 16 * (group % 2) + 8 * hi : 16 * hi + 8 * in_group;
        scales.scale[hi] = __fmul_rn(half_of(after[g_], hi), small_to_float((word >> at & 255) ^ 128, 128));
      }
    }
    return scales;
  }

  const TilePlanes planes_;
  const char* const tile_;
  const int g_;
};

}  // namespace headrace::kernels::cuda
