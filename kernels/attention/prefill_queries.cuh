// The rows of q of a block of prefill_tile.cuh, as fragments: some steps in registers, the others in shared memory.
// Device code, internal to kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/attention/query_cast.cuh"
#include "kernels/cuda/instructions.cuh"

namespace headrace::kernels::cuda {

template <typename Q, typename T, int kDim, bool kWhole>
struct PrefillQueries {
  // Tiles of 16 rows per warp. o of two tiles of a large head would not fit the registers.
  static constexpr int kMTiles = kDim <= 128 ? 2 : 1, kWarps = 8 / kMTiles, kThreads = 32 * kWarps;
  static constexpr int kWarpRows = 16 * kMTiles, kRows = kWarps * kWarpRows;
  static constexpr int kSteps = kDim / 16;
  // Steps of q that stay in registers. Of heads of 128, no other choice, nor one of kCopyStep, was more than 1% faster
  // on an H200, and most were slower, up to 12%. Those of large heads leave shared memory to K and V.
  static constexpr int kHeldSteps = kDim <= 128 ? 3 : kSteps;
  static constexpr int kScalesAt = kRows * (kSteps - kHeldSteps) * 32;
  static constexpr int kBytes = kScalesAt + (kCasts<Q, T> ? kRows * 4 : 0);  // of shared memory

  const AttentionShape& shape;
  const uint32_t memory;
  const float scale_log2;  // of unconverted rows of q
  uint32_t q[kHeldSteps][kMTiles][4];
  uint32_t q_lane;  // this lane's address

  __device__ PrefillQueries(const AttentionShape& of, uint32_t shared_memory)
      : shape(of),
        memory(shared_memory),
        scale_log2(of.scale * kLog2E),
        q_lane(memory + threadIdx.x / 32 * (kSteps - kHeldSteps) * (kMTiles * 512) + threadIdx.x % 32 * 16) {}

  // row_of(tile, half) returns a row's q.
  template <typename RowOf>
  __device__ void load(const RowOf& row_of) {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
      const unsigned short* const rows[2] = {row_of(tile, 0), row_of(tile, 1)};
      const float up[2] = {find_scale(rows[0], tile, 0), find_scale(rows[1], tile, 1)};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        uint32_t words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          words[i] = query_pair(rows[i % 2], step * 16 + i / 2 * 8);
          if constexpr (kCasts<Q, T>) words[i] = cast_pair(words[i], up[i % 2]);
          if (step < kHeldSteps) q[step % kHeldSteps][tile][i] = words[i];
        }
        if (step >= kHeldSteps) store_words(query_at(step, tile), {words[0], words[1], words[2], words[3]});
      }
    }
    __syncwarp();
  }
  __device__ void query_of(int step, uint32_t (&to)[kMTiles][4]) const {
#pragma unroll
    for (int tile = 0; tile < kMTiles; ++tile) {
      if (step >= kHeldSteps) {
        const uint4 words = load_words(query_at(step, tile));
        to[tile][0] = words.x, to[tile][1] = words.y, to[tile][2] = words.z, to[tile][3] = words.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; ++i) to[tile][i] = q[step % kHeldSteps][tile][i];
      }
    }
  }
  // What a row's scores are multiplied by.
  __device__ float scale_of(int tile, int half) const {
    if constexpr (!kCasts<Q, T>) return scale_log2;
    return __int_as_float(load_word(scale_at(tile, half)));
  }

 private:
  // This lane's two of a row's eight elements from d on.
  __device__ uint32_t query_pair(const unsigned short* row, int d) const {
    d += threadIdx.x % 4 * 2;
    return kWhole || d < shape.head_dim ? row[d] | uint32_t{row[d + 1]} << 16 : 0;
  }
  // Stores what the row's scores are multiplied by, and returns what its q is multiplied by.
  __device__ float find_scale(const unsigned short* row, int tile, int half) const {
    if constexpr (!kCasts<Q, T>) return 1.0f;
    int largest = 0;
#pragma unroll
    for (int d = 0; d < kDim; d += 8) largest = larger(largest, query_pair(row, d));
    const CastFactors factors = cast_factors(largest_of_quad(largest));
    if (threadIdx.x % 4 == 0) store_word(scale_at(tile, half), __float_as_int(__fmul_rn(scale_log2, factors.down)));
    return factors.up;
  }
  // Only the warp that stores a row's scale reads it.
  __device__ uint32_t scale_at(int tile, int half) const {
    const int thread = thread_now();
    return memory + kScalesAt + (thread / 32 * kWarpRows + tile * 16 + half * 8 + thread % 32 / 4) * 4;
  }
  // Only this lane reads what it stores there.
  __device__ uint32_t query_at(int step, int tile) const {
    return q_lane + static_cast<uint32_t>(((step - kHeldSteps) * kMTiles + tile) * 512);
  }
};

}  // namespace headrace::kernels::cuda
