// The best of a block's keys (draw.cuh), in order. The threads halve the range of keys until only few of their own best
// keys lie above: at least as many keys do as were asked for, and seldom many more. Each of those counts how many are
// larger. Keys are different integers, so that the result is one whatever the order in which threads arrive. Device
// code; a block of kTopThreads.
#pragma once

#include "kernels/sample/draw.cuh"

namespace headrace::kernels::cuda {

constexpr int kTopThreads = 256;
constexpr int kTopWarps = kTopThreads / 32;
constexpr int kMaxTop = 128;  // that can be asked for

struct TopKeys {  // in shared memory
  alignas(16) uint64_t collected[kTopThreads];
  uint64_t ranked[kMaxTop];
  int counts[2][kTopWarps];
  int collected_count;
};

// How many keys of the block are at least `lowest`. `turn`: of the caller's calls, from 0.
template <int kHeld>
__device__ inline int count_from(const uint64_t (&keys)[kHeld], uint64_t lowest, int turn, TopKeys& shared) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) count += keys[i] >= lowest ? 1 : 0;
  count = __reduce_add_sync(0xffffffff, count);
  // Two sets in turn: a set is written again after the other one's barrier, and by then all have read it.
  int(&counts)[kTopWarps] = shared.counts[turn % 2];
  if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
  __syncthreads();
  count = 0;
#pragma unroll
  for (int i = 0; i < kTopWarps; ++i) count += counts[i];
  return count;
}

// The highest of the bounds tried by halving that at least `want` pass, but no more than `enough`; or 1, which all
// pass.
template <typename Count>
__device__ inline uint64_t find_bound(int want, int enough, uint64_t lowest, const Count& count) {
  uint64_t beyond = ~uint64_t{0};  // fewer than `want` from here on
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

// Of the keys that the threads hold (0: none) the `want` largest are in `ranked`, the largest first; returns how many
// those are. What others read of `shared` before is safe to overwrite only after a barrier; after the call all threads
// see it.
template <int kHeld>
__device__ inline int top_keys(const uint64_t (&keys)[kHeld], int want, TopKeys& shared) {
  if (threadIdx.x == 0) shared.collected_count = 0;
  uint64_t best = keys[0];
#pragma unroll
  for (int i = 1; i < kHeld; ++i) best = larger(best, keys[i]);
  uint64_t lowest = find_bound(want, want + 32, 1, [&](uint64_t bound) { return __syncthreads_count(best >= bound); });
  int turn = 0;
  const auto count_all = [&](uint64_t bound) { return count_from(keys, bound, turn++, shared); };
  lowest = find_bound(want, kTopThreads, lowest, count_all);  // where one thread has many of the best
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
