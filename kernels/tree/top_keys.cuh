// The best of a block's keys (draw.cuh), sorted. The threads bisect the range of keys until few of their best keys are
// above the bound: at least as many as requested, and rarely many more. Each of those counts how many are larger. Keys
// are distinct integers, so the result does not depend on the order of threads. Device code; a block of kTopThreads.
#pragma once

#include "kernels/sample/draw.cuh"

namespace headrace::kernels::cuda {

constexpr int kTopThreads = 256;
constexpr int kTopWarps = kTopThreads / 32;
constexpr int kMaxTop = 128;  // most that can be requested

struct TopKeys {  // in shared memory
  alignas(16) uint64_t collected[kTopThreads];
  uint64_t ranked[kMaxTop];
  int counts[2][kTopWarps];
  int collected_count;
};

// The number of keys of the block that are at least `lowest`. `turn`: number of the caller's call, from 0.
template <int kHeld>
__device__ inline int count_from(const uint64_t (&keys)[kHeld], uint64_t lowest, int turn, TopKeys& shared) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) count += keys[i] >= lowest ? 1 : 0;
  count = __reduce_add_sync(0xffffffff, count);
  // Two alternating sets: a set is written again only after the other one's barrier, when all threads have read it.
  int(&counts)[kTopWarps] = shared.counts[turn % 2];
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
  __syncthreads();
  count = 0;
#pragma unroll
  for (int i = 0; i < kTopWarps; ++i) count += counts[i];
  return count;
}

// Bisects for the highest bound that at least `want` keys reach, but at most `enough`; or 1, which all reach.
template <typename Count>
__device__ inline uint64_t find_bound(int want, int enough, uint64_t lowest, const Count& count) {
  uint64_t beyond = ~uint64_t{0};  // fewer than `want` are at or above it
  int passing = count(lowest);
  while (passing > enough) {
    const uint64_t middle = lowest + (beyond - lowest) / 2;
    const int above = count(middle);
    if (above >= want) {
      lowest = middle;
      passing = above;
    } else {
      beyond = middle;
    }
  }
  return lowest;
}

// Sorts the `want` largest of the threads' keys (0: none) into `ranked`, the largest first; returns their number.
// Earlier reads of `shared` by other threads need a barrier before the call; after it the result is visible to all
// threads.
template <int kHeld>
__device__ inline int top_keys(const uint64_t (&keys)[kHeld], int want, TopKeys& shared) {
  if (threadIdx.x == 0) shared.collected_count = 0;
  uint64_t best = keys[0];
#pragma unroll
  for (int i = 1; i < kHeld; ++i) best = larger(best, keys[i]);
  uint64_t lowest = find_bound(want, want + 32, 1, [&](uint64_t bound) { return __syncthreads_count(best >= bound); });
  int turn = 0;
  const auto count_all = [&](uint64_t bound) { return count_from(keys, bound, turn++, shared); };
  lowest = find_bound(want, kTopThreads, lowest, count_all);  // if one thread holds many of the best
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (keys[i] >= lowest) shared.collected[atomicAdd(&shared.collected_count, 1)] = keys[i];
  }
  __syncthreads();
  const int count = shared.collected_count;
  want = want < count ? want : count;
  if (static_cast<int>(threadIdx.x) < count) {
    const uint64_t mine = shared.collected[threadIdx.x];
    int larger_ones = 0;
#pragma unroll 8
    for (int i = 0; i < count; ++i) larger_ones += shared.collected[i] > mine ? 1 : 0;
    if (larger_ones < want) shared.ranked[larger_ones] = mine;
  }
  __syncthreads();
  return want;
}

}  // namespace headrace::kernels::cuda
