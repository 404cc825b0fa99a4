#include "kernels/experts/slab.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu/dispatch.h"
#include "kernels/experts/op.h"
#include "kernels/experts/slab_bodies.h"
#include "offload/host/thread_pool.h"

namespace headrace {

void seat_experts(const SeatExpertsParams& params, Stream& stream) {
  CHECK(params.slab.slots > 0 && params.slab.slots <= kMaxExperts && params.count > 0 && params.count <= kMaxExperts &&
            params.listed > 0 && params.listed <= params.count + (params.shared ? 1 : 0),
        "slots=", params.slab.slots, " count=", params.count, " listed=", params.listed);
  kernels::dispatch(kernels::cpu::seat_experts, kernels::cuda::seat_experts, params, stream);
}

void fetch_experts(const FetchExpertsParams& params, Stream& stream) {
  CHECK(params.round >= 0 && params.most > 0 && params.most <= params.slab.slots && params.slab.part_count > 0 &&
            params.slab.part_count <= kMaxExpertParts,
        "round=", params.round, " most=", params.most, " parts=", params.slab.part_count);
  for (int i = 0; i < params.slab.part_count; ++i) {
    CHECK(params.slab.parts[i].stride % 16 == 0, "stride=", params.slab.parts[i].stride);
  }
  kernels::dispatch(kernels::cpu::fetch_experts, kernels::cuda::fetch_experts, params, stream);
}

namespace kernels::cpu {

namespace {

// Slots without a used expert, in the order in which they are taken.
std::vector<int32_t> slots_to_take(const ExpertSlab& slab, const std::vector<bool>& stays) {
  std::vector<int32_t> free;
  for (int32_t slot = 0; slot < slab.slots; ++slot) {
    if (!stays[static_cast<size_t>(slot)]) free.push_back(slot);
  }
  std::stable_sort(free.begin(), free.end(), [&](int32_t a, int32_t b) { return slab.used_at[a] < slab.used_at[b]; });
  return free;
}

}  // namespace

void seat_experts(const SeatExpertsParams& params, ThreadPool&) {
  const ExpertSlab& slab = params.slab;
  const int64_t slots = slab.slots, entries = slots + 1;
  const uint32_t now = ++*slab.calls;
  std::vector<bool> stays(static_cast<size_t>(slots));
  std::vector<int32_t> there, absent;
  bool shared = false;
  for (int64_t i = 0; i < params.listed && params.present[i] >= 0; ++i) {
    const int32_t expert = params.present[i];
    if (params.shared && expert == params.count) {
      shared = true;
      continue;
    }
    CHECK(expert < params.count, "expert=", expert, " of ", params.count);
    const auto slot = std::find(slab.expert_in, slab.expert_in + slots, expert) - slab.expert_in;
    if (slot == slots) {
      absent.push_back(expert);
      continue;
    }
    stays[static_cast<size_t>(slot)] = true;
    slab.matrices[expert] = static_cast<int32_t>(slot);
    slab.used_at[slot] = now;
    there.push_back(expert);
  }
  const std::vector<int32_t> free = slots_to_take(slab, stays);
  const int64_t rounds = slab_rounds(slots, params.listed);
  std::fill(slab.rounds, slab.rounds + rounds * entries, -1);
  std::fill(slab.missing, slab.missing + rounds * entries, -1);
  int32_t* next = std::copy(there.begin(), there.end(), slab.rounds);
  const auto first = static_cast<int64_t>(free.size());  // absent ones with a seat in round 0
  for (int64_t i = 0; i < static_cast<int64_t>(absent.size()); ++i) {
    const int32_t expert = absent[static_cast<size_t>(i)];
    const int64_t later = i - first, round = later < 0 ? 0 : 1 + later / slots;
    const int64_t slot = later < 0 ? free[static_cast<size_t>(i)] : later % slots;
    if (later >= 0 && later % slots == 0) next = slab.rounds + round * entries;
    *next++ = expert;
    slab.missing[round * entries + (later < 0 ? i : later % slots)] = expert;
    slab.matrices[expert] = static_cast<int32_t>(slot);
    slab.expert_in[slot] = expert;
    slab.used_at[slot] = now;
  }
  if (shared) {
    slab.matrices[params.count] = static_cast<int32_t>(slots);
    *std::find(slab.rounds, slab.rounds + slots, -1) = static_cast<int32_t>(params.count);
  }
  slab.counts[0] += there.size();
  slab.counts[1] += absent.size();
}

void fetch_experts(const FetchExpertsParams& params, ThreadPool& pool) {
  const ExpertSlab& slab = params.slab;
  const int32_t* const missing = slab.missing + params.round * (slab.slots + 1);
  const int64_t count = std::find(missing, missing + params.most, -1) - missing;
  pool.parallel_for(count * slab.part_count, [&](int64_t index, int) {
    const int32_t expert = missing[index / slab.part_count];
    const ExpertPart& part = slab.parts[index % slab.part_count];
    std::memcpy(static_cast<std::byte*>(part.device) + static_cast<uint64_t>(slab.matrices[expert]) * part.stride,
                static_cast<const std::byte*>(part.host) + static_cast<uint64_t>(expert) * part.stride, part.stride);
  });
}

}  // namespace kernels::cpu
}  // namespace headrace
