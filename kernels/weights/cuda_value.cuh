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
  const Place p = place_of(kind.bits, in_tile, in_step);
  const BitPlace main = main_place(kind.bits, p);
  uint32_t q = reinterpret_cast<const uint32_t*>(tile + step * main_step_bytes(kind.bits))[main.word] >> main.bit &
               (kind.bits == 8 ? 0xffu : 0xfu);
  if (kind.bits == 5 || kind.bits == 6) {
    const BitPlace extra = extra_place(kind.bits, p);
    const uint32_t word =
        reinterpret_cast<const uint32_t*>(tile + planes.extra + step * extra_step_bytes(kind.bits))[extra.word];
    q = join_bits(kind.bits, p.hi, q, __funnelshift_r(word, word, extra.bit) & (kind.bits == 5 ? 1u : 3u));
  }
  const auto* const record =
      reinterpret_cast<const uint32_t*>(tile + planes.scales + col / kRecordCols * record_bytes(kind.scales));
  const int g = in_tile % 8, group = static_cast<int>(col % kRecordCols) / 32;
  const uint32_t word = record[scale_word(g, group)];
  float scale, minimum = -0.0f;
  switch (kind.scales) {
    case ScaleKind::kHalf:
      scale = half_of(word, p.hi);
      break;
    case ScaleKind::kHalfMin:
      scale = half_of(word, p.hi);
      minimum = half_of(record[kRecordWords + scale_word(g, group)], p.hi);
      break;
    case ScaleKind::kSixBits: {
      const uint32_t both = record[kRecordWords + 2 * g + p.hi], sixes = word >> 16 * p.hi;
      scale = __fmul_rn(half_of(both, 0), static_cast<float>(sixes & 0xff));
      minimum = -__fmul_rn(half_of(both, 1), static_cast<float>(sixes >> 8 & 0xff));
      break;
    }
    default: {
      const int s = static_cast<int8_t>(word >> (16 * p.hi + static_cast<int>(col % 32) / 16 * 8));
      scale = __fmul_rn(half_of(record[kRecordWords + g], p.hi), static_cast<float>(s));
      break;
    }
  }
  return __fadd_rn(__fmul_rn(scale, static_cast<float>(static_cast<int>(q) - kind.zero)), minimum);
}

}  // namespace headrace::kernels::cuda
