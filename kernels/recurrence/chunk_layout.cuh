// What the chunk form's kernels hand on through scratch memory: matrices as the fragments that mma.sync multiplies.
// Device code, but for the sizes.
//
// A float x is held as two bf16: hi = x rounded, lo = x - hi rounded. A product is hi hi + hi lo + lo hi, which leaves
// out some 2^-17 of it. A fragment is 16 x 16 elements; for each lane it has the four words of `a` (instructions.cuh)
// of hi, then those of lo.
#pragma once

#include <cstddef>

#include "kernels/cuda/instructions.cuh"
#include "kernels/recurrence/chunk_scratch.h"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

constexpr int kRows = static_cast<int>(kDeltaChunkRows), kRowTiles = kRows / 16;
static_assert(kRows == 64);

// Floats as hi and lo.
struct Pair {
  uint32_t hi, lo;
};
__device__ inline Pair split(float first, float second) {
  const __nv_bfloat162 hi = __floats2bfloat162_rn(first, second);
  const float2 rounded = __bfloat1622float2(hi);
  return {*reinterpret_cast<const uint32_t*>(&hi),
          pack(__fsub_rn(first, rounded.x), __fsub_rn(second, rounded.y), __nv_bfloat16())};
}

// A lane's words of a fragment.
struct Fragment {
  uint32_t hi[4], lo[4];

  __device__ void set(int word, float first, float second) {
    const Pair pair = split(first, second);
    hi[word] = pair.hi, lo[word] = pair.lo;
  }
  __device__ void store(uint4* fragments, int64_t index, int lane) const {
    uint4* const to = fragments + index * kFragmentWords + lane;
    to[0] = {hi[0], hi[1], hi[2], hi[3]};
    to[32] = {lo[0], lo[1], lo[2], lo[3]};
  }
  __device__ void load(const uint4* fragments, int64_t index, int lane) {
    const uint4* const from = fragments + index * kFragmentWords + lane;
    const uint4 first = from[0], second = from[32];
    hi[0] = first.x, hi[1] = first.y, hi[2] = first.z, hi[3] = first.w;
    lo[0] = second.x, lo[1] = second.y, lo[2] = second.z, lo[3] = second.w;
  }
};

// c[n] += a b[n] for neighbouring column tiles. b's words are b0, b1 of each tile.
template <int kTiles>
__device__ inline void multiply_pairs(float (&c)[kTiles][4], const Fragment& a, const uint32_t (&hi)[kTiles][2],
                                      const uint32_t (&lo)[kTiles][2]) {
#pragma unroll
  for (int n = 0; n < kTiles; ++n) multiply(c[n], a.hi, hi[n][0], hi[n][1], __nv_bfloat16());
#pragma unroll
  for (int n = 0; n < kTiles; ++n) multiply(c[n], a.hi, lo[n][0], lo[n][1], __nv_bfloat16());
#pragma unroll
  for (int n = 0; n < kTiles; ++n) multiply(c[n], a.lo, hi[n][0], hi[n][1], __nv_bfloat16());
}

// A chunk's and head's part of the scratch memory.
struct KeyMatrices {
  uint4 *k, *q;       // [row tiles, dim tiles]
  uint4* transposed;  // [dim tiles, row tiles]: of k
};
struct ValueMatrices {
  uint4 *inverse, *weights;  // [row tiles, row tiles]: T and the weights of o; those above the diagonal are not set
  float *grown, *left;       // [64]: exp(G_i), exp(G_n - G_i)
};
__device__ inline int64_t key_words(const DeltaShape& shape) { return kRowTiles * dim_tiles(shape) * kFragmentWords; }
__device__ inline KeyMatrices key_matrices(const DeltaChunksParams& p, int64_t chunk, int64_t key_head) {
  const int64_t words = key_words(p.shape);
  uint4* const first = static_cast<uint4*>(p.scratch) + (chunk * p.shape.k_heads + key_head) * 3 * words;
  return {first, first + words, first + 2 * words};
}
__device__ inline ValueMatrices value_matrices(const DeltaChunksParams& p, int64_t chunk, int64_t head) {
  constexpr int64_t kWords = kRowTiles * kRowTiles * kFragmentWords;
  uint4* const values = static_cast<uint4*>(p.scratch) + p.rows / kRows * p.shape.k_heads * 3 * key_words(p.shape);
  uint4* const first = values + (chunk * p.shape.v_heads + head) * (kValueMatricesBytes / 16);
  auto* const factors = reinterpret_cast<float*>(first + 2 * kWords);
  return {first, first + kWords, factors, factors + kRows};
}

}  // namespace headrace::kernels::cuda
