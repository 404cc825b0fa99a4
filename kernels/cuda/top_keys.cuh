// The best of a block's keys (draw.cuh), in order: the threads halve the range of keys until few enough lie above it,
// and each of those few counts how many are larger. Keys are different integers, so that the result is one whatever
// the order in which threads arrive. Device code; a block of kTopThreads.
#pragma once

#include "kernels/cuda/draw.cuh"

namespace headrace::kernels::cuda {

constexpr int kTopThreads = 256;
constexpr int kTopWarps = kTopThreads / 32;
constexpr int kMostTop = 128;  // that can be asked for

struct TopKeys {  // in shared memory
  alignas(16) uint64_t collected[kTopThreads];
  uint64_t ranked[kMostTop];
  int counts[2][kTopWarps];
  int collected_count;
};

// Of the keys that the threads hold (0: none) the `want` largest are in `ranked`, the largest first; returns how many
// those are. What others read of `shared` before is safe to overwrite only after a barrier; after the call all threads
// see it.
template <int kHeld>
__device__ inline int top_keys(const uint64_t (&keys)[kHeld], int want, TopKeys& shared) {
  const int warp = static_cast<int>(threadIdx.x / 32);
  int turn = 0;
  const auto count_from = [&](uint64_t lowest) {
    int count = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) count += keys[i] >= lowest ? 1 : 0;
    count = __reduce_add_sync(0xffffffff, count);
    // Two sets in turn: a set is written again after the other one's barrier, and by then all have read it.
    int(&counts)[kTopWarps] = shared.counts[turn++ & 1];
    if (threadIdx.x % 32 == 0) counts[warp] = count;
    __syncthreads();
    count = 0;
#pragma unroll
    for (int i = 0; i < kTopWarps; ++i) count += counts[i];
    return count;
  };
  if (threadIdx.x == 0) shared.collected_count = 0;
  uint64_t lowest = 1;
  int count = count_from(lowest);
  want = want < count ? want : count;
  const int enough = want + 64 < kTopThreads ? want + 64 : kTopThreads;
  if (count > enough) {
    uint64_t largest = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) largest = larger(largest, keys[i]);
    uint64_t beyond = block_largest<kTopThreads>(largest) + 1;  // fewer than `want` from here on, if want > 0
    while (count > enough) {
      const uint64_t middle = lowest + (beyond - lowest) / 2;
      const int above = count_from(middle);
      if (above >= want) {
        lowest = middle;
        count = above;
      } else {
        beyond = middle;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (keys[i] >= lowest) shared.collected[atomicAdd(&shared.collected_count, 1)] = keys[i];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < count) {
    const uint64_t mine = shared.collected[threadIdx.x];
    int larger_ones = 0;
    for (int i = 0; i < count; ++i) larger_ones += shared.collected[i] > mine ? 1 : 0;
    if (larger_ones < want) shared.ranked[larger_ones] = mine;
  }
  __syncthreads();
  return want;
}

}  // namespace headrace::kernels::cuda
