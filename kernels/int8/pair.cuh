// One or two rows, in f32, become int8: a block has them in registers. Of each 128 columns four threads have eight of
// each 32, so that lanes read neighbouring memory. Every sum, difference and product is rounded as on the CPU. Device
// code.
#pragma once

#include <cstdint>

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/int8/layout.h"
#include "kernels/int8/op.h"
#include "kernels/int8/quantise.cuh"

namespace headrace::kernels::cuda {

constexpr int kPairThreads = 512, kLongPairThreads = 256;        // at most; of rows that are computed twice
constexpr int kPairRuns = 4;                                     // of kChunk columns, 32 apart
constexpr int kGroupCols = 128;                                  // of four threads
constexpr int64_t kMaxKeptCols = kPairThreads / 4 * kGroupCols;  // longer rows are computed twice

constexpr int pair_bounds(bool once) { return once ? kPairThreads : kLongPairThreads; }

template <int kRows>
using PairValues = float[kRows][kPairRuns][kChunk];

struct PairShape {
  int cols, padded, groups, block;  // block: of the rotation
};
inline PairShape pair_shape(int64_t cols) {
  const int64_t padded = padded_int8_cols(cols);
  return {static_cast<int>(cols), static_cast<int>(padded), static_cast<int>((padded + kGroupCols - 1) / kGroupCols),
          static_cast<int>(rotation_block(cols))};
}
inline int pair_threads(const PairShape& shape) {
  return shape.cols > kMaxKeptCols ? kLongPairThreads : (shape.groups * 4 + 31) / 32 * 32;
}

// ---- Rotation -------------------------------------------------------------------------------------------------------

__device__ inline void butterfly(float& a, float& b) {
  const float low = a, high = b;
  a = __fadd_rn(low, high);
  b = __fsub_rn(low, high);
}
// With the lane `lanes` apart; the factor is exact, so it rounds as a sum does.
__device__ inline void butterfly_lanes(float& value, int lanes, float sign) {
  value = __fmaf_rn(sign, value, __shfl_xor_sync(kAllLanes, value, lanes));
}

// Distances 1, 2 and 4 are within a chunk, 8 and 16 between lanes, 32 and 64 between chunks. All lanes call it.
__device__ inline void rotate_row(float (&v)[kPairRuns][kChunk], int block) {
  if (block == 1) return;
#pragma unroll
  for (int run = 0; run < kPairRuns; ++run) {
#pragma unroll
    for (int apart = 1; apart < kChunk; apart *= 2) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        if ((i & apart) == 0) butterfly(v[run][i], v[run][i + apart]);
      }
    }
#pragma unroll
    for (int lanes = 1; lanes <= 2; lanes *= 2) {
      const float sign = (threadIdx.x & lanes) != 0 ? -1.0f : 1.0f;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) butterfly_lanes(v[run][i], lanes, sign);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    butterfly(v[0][i], v[1][i]);
    butterfly(v[2][i], v[3][i]);
    if (block == 64) continue;
    butterfly(v[0][i], v[2][i]);
    butterfly(v[1][i], v[3][i]);
  }
}

// ---- Sums and maxima over a block -----------------------------------------------------------------------------------

// Of each row, in every thread: lanes by halves, then warps in order.
template <int kRows, typename Combine>
__device__ void combine_block(float (&of_row)[kRows], float (&of_warp)[kRows][kPairThreads / 32],
                              const Combine& combine) {
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    of_row[r] = warp_reduce(of_row[r], combine);
    if (threadIdx.x % 32 == 0) of_warp[r][threadIdx.x / 32] = of_row[r];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    of_row[r] = of_warp[r][0];
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) of_row[r] = combine(of_row[r], of_warp[r][warp]);
  }
}

// NaN if either is.
__device__ inline float larger(float a, float b) {
  float top;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(top) : "f"(a), "f"(b));
  return top;
}

// ---- The whole ------------------------------------------------------------------------------------------------------

template <typename Source>
__device__ void read_pair(const Source& source, const PairShape& shape, int group, PairValues<Source::kRows>& v) {
#pragma unroll
  for (int run = 0; run < kPairRuns; ++run) {
    const int col = group * kGroupCols + 32 * run + static_cast<int>(threadIdx.x % 4) * kChunk;
    if (col < shape.cols) {
      if constexpr (Source::kRows == 1) {
        source.read(col, v[0][run]);
      } else {
        source.read(col, v[0][run], v[1][run]);
      }
    } else {
#pragma unroll
      for (int r = 0; r < Source::kRows; ++r) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) v[r][run][i] = 0.0f;
      }
    }
  }
}

// 1 / rms of each row.
template <typename Source>
__device__ void rms_factors(const Source& source, const PairShape& shape, bool once, PairValues<Source::kRows>& v,
                            float (&factor)[Source::kRows]) {
  __shared__ float of_warp[Source::kRows][kPairThreads / 32];
  const int first = static_cast<int>(threadIdx.x / 4), step = static_cast<int>(blockDim.x / 4);
#pragma unroll
  for (float& of_row : factor) of_row = 0.0f;
  for (int base = 0; base < shape.groups; base += step) {
    read_pair(source, shape, base + first, v);
#pragma unroll
    for (int r = 0; r < Source::kRows; ++r) {
#pragma unroll
      for (int run = 0; run < kPairRuns; ++run) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) factor[r] = __fmaf_rn(v[r][run][i], v[r][run][i], factor[r]);
      }
    }
    if (once) break;
  }
  combine_block(factor, of_warp, [](float a, float b) { return __fadd_rn(a, b); });
#pragma unroll
  for (int r = 0; r < Source::kRows; ++r) {
    factor[r] =
        __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(factor[r], static_cast<float>(shape.cols)), source.eps())));
  }
}

// Source: read(col, chunk …) reads a chunk of each of its kRows rows; write(r, col, words) writes the bytes of one, and
// write_scale(r, scale); kNormed: weight(col, chunk) and eps(). kOnce: the block has a thread for each part of a row.
template <bool kOnce, typename Source>
__device__ void convert_rows(const Source& source, const PairShape& shape) {
  __shared__ float of_warp[Source::kRows][kPairThreads / 32];
  const int first = static_cast<int>(threadIdx.x / 4), step = static_cast<int>(blockDim.x / 4);
  PairValues<Source::kRows> v;
  float factor[Source::kRows], top[Source::kRows] = {};
  if constexpr (Source::kNormed) rms_factors(source, shape, kOnce, v, factor);
  const auto rotated = [&](int group) {
    if (!(Source::kNormed && kOnce)) read_pair(source, shape, group, v);
    if constexpr (Source::kNormed) {
#pragma unroll
      for (int run = 0; run < kPairRuns; ++run) {
        const int col = group * kGroupCols + 32 * run + static_cast<int>(threadIdx.x % 4) * kChunk;
        float weight[kChunk] = {};
        if (col < shape.cols) source.weight(col, weight);
#pragma unroll
        for (int i = 0; i < kChunk; ++i) {
#pragma unroll
          for (int r = 0; r < Source::kRows; ++r)
            v[r][run][i] = __fmul_rn(__fmul_rn(v[r][run][i], factor[r]), weight[i]);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < Source::kRows; ++r) rotate_row(v[r], shape.block);
  };
  for (int base = 0; base < shape.groups; base += step) {
    rotated(base + first);
#pragma unroll
    for (int r = 0; r < Source::kRows; ++r) {
#pragma unroll
      for (int run = 0; run < kPairRuns; ++run) {
#pragma unroll
        for (int i = 0; i < kChunk; ++i) top[r] = larger(top[r], fabsf(v[r][run][i]));
      }
    }
    if (kOnce) break;
  }
  combine_block(top, of_warp, larger);
  RowQuant quant[Source::kRows];
#pragma unroll
  for (int r = 0; r < Source::kRows; ++r) {
    quant[r] = RowQuant(top[r]);
    if (threadIdx.x == 0) source.write_scale(r, quant[r].scale);
  }
  for (int base = 0; base < shape.groups; base += step) {
    const int group = base + first;
    if (!kOnce) rotated(group);
#pragma unroll
    for (int run = 0; run < kPairRuns; ++run) {
      const int col = group * kGroupCols + 32 * run + static_cast<int>(threadIdx.x % 4) * kChunk;
      if (col >= shape.padded) continue;
#pragma unroll
      for (int r = 0; r < Source::kRows; ++r) {
        source.write(r, col, make_uint2(quant[r].word_of(v[r][run]), quant[r].word_of(v[r][run] + 4)));
      }
    }
    if (kOnce) break;
  }
}

}  // namespace headrace::kernels::cuda
