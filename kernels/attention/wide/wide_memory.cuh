// The shared memory of a block of wide_tile.cuh, and which part of the work a thread has. Device code, internal to
// kernels/attention.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "kernels/cuda/instructions.cuh"

namespace headrace::kernels::cuda {

// kGroups: of rows, each with kEach tiles of 16.
template <int kGroups, int kEach>
struct WideMemory {
  static constexpr int kDim = static_cast<int>(kMaxAttentionHeadDim), kKeys = 32, kQuarters = 4;
  static constexpr int kWarps = kGroups * kQuarters, kThreads = 32 * kWarps;
  static constexpr int kGroupRows = 16 * kEach, kMTiles = kGroups * kEach, kRows = 16 * kMTiles;
  static constexpr int kSteps = kDim / kQuarters / 16;  // of the products of a quarter
  static constexpr int kNTiles = kDim / kWarps / 8;     // of a warp's columns of o
  static constexpr int kChunks = kDim / 8;              // a chunk: 16 bytes
  static constexpr int kRowBytes = kDim * 2, kTileBytes = kKeys * kRowBytes;
  // The scores of 8 keys for a group's rows: the quarters' sums, then in their place the weights, then what the rows'
  // warps tell one another.
  static constexpr int kSumBytes = kEach * 512, kScoreBytes = kQuarters * kSumBytes;
  static constexpr int kValuesAt = kTileBytes, kScoresAt = kValuesAt + kTileBytes;
  static constexpr int kFirstsAt = kScoresAt + kGroups * kKeys / 8 * kScoreBytes, kLimitsAt = kFirstsAt + kRows * 4;
  static constexpr int kFactorsAt = kLimitsAt + kRows * 4, kSharedBytes = kFactorsAt + kRows * 8;
  static_assert(kSharedBytes <= 99 * 1024);  // the limit of sm_86 and sm_89

  const uint32_t shared;

  __device__ explicit WideMemory(const void* memory) : shared(shared_address(memory)) {}

  // This thread, read again in each step of the work: there are no registers to keep what follows from it in.
  struct Place {
    int warp, lane, quarter, group;
    __device__ int row(int tile, int half) const { return group * kGroupRows + tile * 16 + half * 8 + lane / 4; }
    __device__ int own_row() const { return row(lane / 2 % kEach, lane % 2); }
  };
  __device__ static Place now() {
    const int thread = thread_now(), warp = thread / 32;
    return {warp, thread % 32, warp % kQuarters, warp / kQuarters};
  }

  __device__ uint32_t values() const { return shared + kValuesAt; }
  __device__ uint32_t first_of(int row) const { return shared + kFirstsAt + row * 4; }
  __device__ uint32_t limit_of(int row) const { return shared + kLimitsAt + row * 4; }
  // Of 8 keys, for a group's rows.
  __device__ uint32_t scores(int of_group, int keys) const {
    return shared + kScoresAt + (of_group * kQuarters + keys) * kScoreBytes;
  }
  __device__ uint32_t weights(int tile, int keys, int lane) const {
    return scores(tile / kEach, keys) + tile % kEach * 256 + lane * 8;
  }
  // Two words of a row from each warp of its group, and one; behind the weights.
  __device__ uint32_t word_of(int row, int from) const {
    return scores(row / kGroupRows, from) + kSumBytes + row % kGroupRows * 8;
  }
  __device__ void tell(const Place& at, float low, float high) const {  // of the lane's own row
    store_words(word_of(at.own_row(), at.quarter), uint2{__float_as_uint(low), __float_as_uint(high)});
  }
  __device__ float2 told(int row, int from) const { return load_floats(word_of(row, from)); }
  __device__ uint32_t told_of(int row) const {
    return scores(row / kGroupRows, 0) + 2 * kSumBytes + row % kGroupRows * 4;
  }

  // Chunks of a row are permuted by the row's number, so that ldmatrix reads 8 rows from different banks.
  __device__ static uint32_t place(int row, int chunk) {
    return static_cast<uint32_t>(row * kRowBytes + ((chunk ^ (row & 7)) << 4));
  }
  // The address of a lane's chunk two chunks times `step` further.
  __device__ static uint32_t at_step(uint32_t lane_address, int step) {
    return (lane_address ^ (step % 4 << 5)) + step / 4 * 128;
  }

  // What a row's scores are multiplied by; the base of its weights' exponents, negated.
  __device__ float2 factors_of(int row) const { return load_floats(shared + kFactorsAt + row * 8); }
  __device__ void put_factors(int row, float scale, float shift) const {
    store_words(shared + kFactorsAt + row * 8, uint2{__float_as_uint(scale), __float_as_uint(shift)});
  }
  // The first of the columns of a thread's two elements of an n-tile.
  __device__ static int column_of(int n) {
    const Place at = now();
    return (at.warp * kNTiles + n) * 8 + at.lane % 4 * 2;
  }
};

}  // namespace headrace::kernels::cuda
