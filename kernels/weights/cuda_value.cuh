// One weight of a packed part, by the formula of its type. Device code, internal to kernels.
#pragma once

#include <cuda_fp16.h>

#include <type_traits>

#include "kernels/cuda/chunk.cuh"
#include "kernels/weights/cuda_grids.cuh"
#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

__device__ inline float half_of(uint32_t word, int hi) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(word >> 16 * hi)));
}

// d s of a row and a column of a record, where s is a signed byte.
__device__ inline float packed_signed_scale(const uint32_t* record, ScaleKind scales, int in_tile, int col) {
  const int g = in_tile % 8, hi = in_tile / 8, group = col / 32;
  const bool wide = is_signed_wide(scales);
  const uint32_t word = record[wide ? wide_scale_word(g, group) : scale_word(g, group)];
  const int at = wide ? 16 * (group % 2) + 8 * hi : 16 * hi + col % 32 / 16 * 8;
  return __fmul_rn(half_of(record[record_words(scales) + g], hi), static_cast<float>(static_cast<int8_t>(word >> at)));
}

// A lane's run of a packed part of a grid: of the row `in_tile` and of the columns from `col` on, a multiple of 8.
template <WeightType kType>
__device__ inline GridRun packed_run(const char* tile, const TilePlanes& planes, int in_tile, int64_t col) {
  constexpr PackedKind kKind = packed_kind(kType);
  const auto words_at = [tile](int64_t bytes) { return reinterpret_cast<const uint32_t*>(tile + bytes); };
  const int64_t step = col / kStepCols;
  const int half = static_cast<int>(col % kStepCols) / 32, hi = in_tile / 8;
  const int lane = in_tile % 8 * 4 + static_cast<int>(col % 32) / 8;
  const uint32_t main = words_at(step * main_step_bytes(kKind.bits))[lane * 2 + half];
  uint32_t extra = 0, more = 0;
  if constexpr (has_extra(kKind.bits)) extra = words_at(planes.extra + step * extra_step_bytes(kKind.bits))[lane];
  if constexpr (has_word(kKind.scales)) {
    const uint32_t* const record = words_at(planes.scales + col / kRecordCols * record_bytes(kKind.scales));
    more = record[lane_word(kKind.scales, lane)] >> 8 * (step % kStepsARecord);
  }
  return grid_run_of(kType, main, extra, more, half, hi);
}

// q of a weight as a number: its level with its sign, times the type's factor.
__device__ inline float packed_grid_q(WeightType type, const char* tile, const TilePlanes& planes, int in_tile,
                                      int64_t col) {
  const auto of = [&](auto kind) {
    constexpr WeightType kType = decltype(kind)::value;
    const int place = static_cast<int>(col % 8);
    return grid_level<kType>(packed_run<kType>(tile, planes, in_tile, col - place), place) * grid_factor(kType);
  };
  switch (type) {
    case WeightType::kIQ2XXS:
      return of(std::integral_constant<WeightType, WeightType::kIQ2XXS>{});
    case WeightType::kIQ2XS:
      return of(std::integral_constant<WeightType, WeightType::kIQ2XS>{});
    case WeightType::kIQ2S:
      return of(std::integral_constant<WeightType, WeightType::kIQ2S>{});
    case WeightType::kIQ3XXS:
      return of(std::integral_constant<WeightType, WeightType::kIQ3XXS>{});
    default:
      return of(std::integral_constant<WeightType, WeightType::kIQ3S>{});
  }
}

// scale * (q - zero) + minimum; a type without a minimum adds -0, which changes nothing.
__device__ inline float packed_weight(WeightType type, const void* data, int64_t cols, int64_t row, int64_t col) {
  const PackedKind kind = packed_kind(type);
  const TilePlanes planes = tile_planes(kind, cols);
  const char* const tile = static_cast<const char*>(data) + row / kTileRows * planes.bytes;
  const int in_tile = static_cast<int>(row % kTileRows), in_step = static_cast<int>(col % kStepCols);
  const int64_t step = col / kStepCols;
  if (kind.grid) {
    const auto* const record =
        reinterpret_cast<const uint32_t*>(tile + planes.scales + col / kRecordCols * record_bytes(kind.scales));
    const float scale = packed_signed_scale(record, kind.scales, in_tile, static_cast<int>(col % kRecordCols));
    return __fmul_rn(scale, packed_grid_q(type, tile, planes, in_tile, col));
  }
  const Place p = place_of(is_narrow(kind.scales), in_tile, in_step);
  const BitPlace main = main_place(kind.bits, p);
  uint32_t q = reinterpret_cast<const uint32_t*>(tile + step * main_step_bytes(kind.bits))[main.word] >> main.bit &
               ((1u << bits_in_main(kind.bits)) - 1);
  if (has_extra(kind.bits)) {
    const BitPlace extra = extra_place(kind.bits, p);
    const uint32_t word =
        reinterpret_cast<const uint32_t*>(tile + planes.extra + step * extra_step_bytes(kind.bits))[extra.word];
    q = join_bits(kind.bits, p, q, __funnelshift_r(word, word, extra.bit) & (kind.bits == 6 ? 3u : 1u));
  }
  if (kind.levels) q = level_of(q);
  if (kind.floats) q = static_cast<uint32_t>(float_level(q));
  const auto* const record =
      reinterpret_cast<const uint32_t*>(tile + planes.scales + col / kRecordCols * record_bytes(kind.scales));
  const int g = in_tile % 8, group = static_cast<int>(col % kRecordCols) / 32;
  const uint32_t word = record[is_wide(kind.scales) ? wide_scale_word(g, group) : scale_word(g, group)];
  const uint32_t* const after = record + record_words(kind.scales);
  float scale, minimum = -0.0f;
  switch (kind.scales) {
    case ScaleKind::kHalf:
      scale = half_of(word, p.hi);
      break;
    case ScaleKind::kHalfMin:
      scale = half_of(word, p.hi);
      minimum = half_of(after[scale_word(g, group)], p.hi);
      break;
    case ScaleKind::kExponent:
      scale = __uint_as_float(exponent_scale(word >> (16 * (group % 2) + 8 * p.hi) & 0xff));
      break;
    case ScaleKind::kSixBits: {
      const uint32_t both = after[2 * g + p.hi], sixes = word >> 16 * p.hi;
      scale = __fmul_rn(half_of(both, 0), static_cast<float>(sixes & 0xff));
      minimum = -__fmul_rn(half_of(both, 1), static_cast<float>(sixes >> 8 & 0xff));
      break;
    }
    case ScaleKind::kFourBits: {
      const uint32_t both = after[2 * g + p.hi], fours = word >> (16 * p.hi + static_cast<int>(col % 32) / 16 * 8);
      scale = __fmul_rn(half_of(both, 0), static_cast<float>(fours & 15));
      minimum = -__fmul_rn(half_of(both, 1), static_cast<float>(fours >> 4 & 15));
      break;
    }
    default:
      scale = packed_signed_scale(record, kind.scales, in_tile, static_cast<int>(col % kRecordCols));
      break;
  }
  return __fadd_rn(__fmul_rn(scale, static_cast<float>(static_cast<int>(q) - kind.zero)), minimum);
}

}  // namespace headrace::kernels::cuda
