// One weight of a packed part, by the formula of its type. Device code, internal to kernels.
#pragma once

#include <cuda_fp16.h>

#include "kernels/cuda/chunk.cuh"
#include "kernels/weights/cuda_layout.h"

namespace headrace::kernels::cuda {

__device__ inline float half_of(uint32_t word, int hi) {
  return __half2float(__ushort_as_half(static_cast<uint16_t>(word >> 16 * hi)));
}

// scale * (q - zero) + minimum; a type without a minimum adds -0, which changes nothing.
__device__ inline float packed_weight(WeightType type, const void* data, int64_t cols, int64_t row, int64_t col) {
  const PackedKind kind = packed_kind(type);
  const TilePlanes planes = tile_planes(kind, cols);
  const char* const tile = static_cast<const char*>(data) + row / kTileRows * planes.bytes;
  const int in_tile = static_cast<int>(row % kTileRows), in_step = static_cast<int>(col % kStepCols);
  const int64_t step = col / kStepCols;
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
  const auto* const record =
      reinterpret_cast<const uint32_t*>(tile + planes.scales + col / kRecordCols * record_bytes(kind.scales));
  const int g = in_tile % 8, group = static_cast<int>(col % kRecordCols) / 32;
  const bool wide = kind.scales == ScaleKind::kSignedWide;
  const uint32_t word = record[wide ? wide_scale_word(g, group) : scale_word(g, group)];
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
    default: {
      const int at = wide ? 16 * (group % 2) + 8 * p.hi : 16 * p.hi + static_cast<int>(col % 32) / 16 * 8;
      scale = __fmul_rn(half_of(after[g], p.hi), static_cast<float>(static_cast<int8_t>(word >> at)));
      break;
    }
  }
  return __fadd_rn(__fmul_rn(scale, static_cast<float>(static_cast<int>(q) - kind.zero)), minimum);
}

}  // namespace headrace::kernels::cuda
