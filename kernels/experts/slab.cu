// Experts that are brought from host memory. One block decides, with a thread for each slot and each listed expert;
// then many blocks read pinned memory through the link, so that loads of all of them are under way together.
#include <algorithm>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/experts/op.h"
#include "kernels/experts/slab_bodies.h"

namespace headrace::kernels::cuda {

namespace {

// ---- seat_experts ---------------------------------------------------------------------------------------------------

constexpr int kSeatThreads = 1024, kNone = -1;
static_assert(kSeatThreads >= kMaxExperts);

// Of the slots that do not stay, how many are taken before this one.
__device__ int taken_before(const uint32_t* used_at, const bool* stays, int slots, int slot) {
  const uint32_t own = used_at[slot];
  int before = 0;
  for (int s = 0; s < slots; ++s) {
    if (!stays[s] && (used_at[s] < own || (used_at[s] == own && s < slot))) ++before;
  }
  return before;
}

// Every used expert is one of `there` or of `absent`, which have ranks in ascending order. An absent one of rank i has
// a seat in round 0 while i < first, the number of slots that do not stay, and behind that in the rounds that follow.
__global__ void __launch_bounds__(kSeatThreads) seat_experts_kernel(SeatExpertsParams p, int rounds) {
  __shared__ int slot_of[kMaxExperts];      // of an expert
  __shared__ int absent_ones[kMaxExperts];  // by rank
  __shared__ int free_slots[kMaxExperts];   // in the order in which they are taken
  __shared__ uint32_t used_at[kMaxExperts];
  __shared__ bool stays[kMaxExperts];  // of a slot
  const ExpertSlab& slab = p.slab;
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  const int slots = static_cast<int>(slab.slots), count = static_cast<int>(p.count), entries = slots + 1;
  const bool is_slot = thread < slots;
  const uint32_t now = *slab.calls + 1;
  int occupant = is_slot ? slab.expert_in[thread] : kNone;
  if (thread < count) slot_of[thread] = kNone;
  if (is_slot) {
    used_at[thread] = slab.used_at[thread];
    stays[thread] = false;
  }
  for (int i = thread; i < rounds * entries; i += threads) slab.rounds[i] = slab.missing[i] = kNone;
  __syncthreads();
  if (thread == 0) *slab.calls = now;
  if (occupant >= 0) slot_of[occupant] = thread;
  __syncthreads();
  // A thread has one listed expert, but for a shared one behind as many others as there are threads.
  const int listed = static_cast<int>(p.listed);
  const int expert = thread < listed ? p.present[thread] : kNone;
  const bool used = expert >= 0 && expert < count, is_there = used && slot_of[expert] >= 0;
  if (is_there) stays[slot_of[expert]] = true;
  int all_there = 0, all_absent = 0;
  const int there_before = sum_before(is_there ? 1 : 0, &all_there);
  const int absent_before = sum_before(used && !is_there ? 1 : 0, &all_absent);
  if (used && !is_there) absent_ones[absent_before] = expert;
  __syncthreads();
  const int first = slots - all_there, later = all_absent - first;  // later: above 0 if one round is not enough
  int taken = kNone;  // how many slots are taken before this one; of one that stays: none
  if (all_absent > 0 && is_slot && !stays[thread]) {
    taken = taken_before(used_at, stays, slots, thread);
    free_slots[taken] = thread;
  }
  __syncthreads();
  if (is_there) {
    slab.matrices[expert] = slot_of[expert];
    slab.rounds[there_before] = expert;
  } else if (used) {
    const int behind = absent_before - first;
    const int round = behind < 0 ? 0 : 1 + behind / slots, place = behind < 0 ? absent_before : behind % slots;
    slab.matrices[expert] = behind < 0 ? free_slots[absent_before] : place;
    slab.rounds[round * entries + (behind < 0 ? all_there : 0) + place] = expert;
    slab.missing[round * entries + place] = expert;
  }
  if (is_slot) {  // its last expert
    bool touched = stays[thread];
    if (taken >= 0 && taken < all_absent) {
      occupant = absent_ones[taken];
      touched = true;
    }
    if (thread < later) {
      occupant = absent_ones[first + thread + (later - 1 - thread) / slots * slots];
      touched = true;
    }
    if (touched) {
      slab.expert_in[thread] = occupant;
      slab.used_at[thread] = now;
    }
  }
  const bool shared = p.shared && ((thread < listed && expert == count) ||
                                   (thread == 0 && listed > threads && p.present[threads] == count));
  if (shared) {
    slab.matrices[count] = slots;
    slab.rounds[all_there + min(all_absent, first)] = count;
  }
  if (thread == 0) {
    slab.counts[0] += static_cast<uint64_t>(all_there);
    slab.counts[1] += static_cast<uint64_t>(all_absent);
  }
}

// ---- fetch_experts --------------------------------------------------------------------------------------------------

constexpr int kFetchThreads = 256, kLoads = 8, kFetchBytes = kFetchThreads * kLoads * 16 * 2;

__device__ inline uint4 load_once(const uint4* from) {
  uint4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from));
  return value;
}

// Grid: pieces of the largest part x parts x experts of the list.
__global__ void __launch_bounds__(kFetchThreads) fetch_experts_kernel(FetchExpertsParams p) {
  const ExpertSlab& slab = p.slab;
  const int expert = slab.missing[p.round * (slab.slots + 1) + blockIdx.z];
  if (expert < 0) return;
  const ExpertPart& part = slab.parts[blockIdx.y];
  const uint64_t begin = uint64_t{blockIdx.x} * kFetchBytes;
  if (begin >= part.stride) return;
  const uint64_t bytes = part.stride - begin < kFetchBytes ? part.stride - begin : kFetchBytes;
  const int count = static_cast<int>(bytes / 16);
  const auto* const from = reinterpret_cast<const uint4*>(static_cast<const char*>(part.host) +
                                                          static_cast<uint64_t>(expert) * part.stride + begin);
  auto* const to = reinterpret_cast<uint4*>(static_cast<char*>(part.device) +
                                            static_cast<uint64_t>(slab.matrices[expert]) * part.stride + begin);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kFetchThreads * kLoads) {
    uint4 values[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (i + j * kFetchThreads < count) values[j] = load_once(from + i + j * kFetchThreads);
    }
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (i + j * kFetchThreads < count) to[i + j * kFetchThreads] = values[j];
    }
  }
}

}  // namespace

void seat_experts(const SeatExpertsParams& params, Stream& stream) {
  const int64_t needed = std::max({params.slab.slots, params.count, params.listed});
  const int threads = static_cast<int>(std::min<int64_t>(kSeatThreads, ceil_div(needed, 32) * 32));
  launch_on(cuda_stream(stream), "seat_experts", {1, 1, threads}, seat_experts_kernel, params,
            static_cast<int>(slab_rounds(params.slab.slots, params.listed)));
}

void fetch_experts(const FetchExpertsParams& params, Stream& stream) {
  uint64_t largest = 0;
  for (int i = 0; i < params.slab.part_count; ++i) largest = std::max(largest, params.slab.parts[i].stride);
  const auto pieces = static_cast<int64_t>((largest + kFetchBytes - 1) / kFetchBytes);
  launch_on(cuda_stream(stream), "fetch_experts", {pieces, params.slab.part_count, kFetchThreads, 0, params.most},
            fetch_experts_kernel, params);
}

}  // namespace headrace::kernels::cuda
