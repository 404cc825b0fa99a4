// Experts of a layer that are in host memory, of which the device has some: a slab of slots, each with one expert's
// matrices. What a pass uses is known on the device alone, so the device decides which experts leave the slab, and
// brings those that it lacks over the link itself. Nothing waits for the host, and the enqueued work depends on sizes
// alone. Every expert is multiplied by the same kernel from whichever slot it is in, so no bit depends on the slab.
//
// A pass that uses more experts than there are slots takes rounds: those that are there and the first of the others,
// then `slots` at a time. The slab of a layer is used by one stream at a time.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "offload/device/stream.h"

namespace headrace {

// One of the matrices, or biases, of all experts: those of expert e are `stride` bytes times e behind the first.
struct ExpertPart {
  const void* host = nullptr;  // of expert 0, pinned
  void* device = nullptr;      // of slot 0
  uint64_t stride = 0;         // a multiple of 16
};
constexpr int kMaxExpertParts = 4;

struct ExpertSlab {
  ExpertPart parts[kMaxExpertParts];
  int part_count = 0;
  int64_t slots = 0;
  // All on the device. What is in the slots, and how often it was; -1 and zeros are those of empty slots:
  int32_t* expert_in = nullptr;  // [slots]; -1: none
  uint32_t* used_at = nullptr;   // [slots]: the last call that used the expert; 0: none has
  uint32_t* calls = nullptr;     // [1]: of seat_experts() so far
  uint64_t* counts = nullptr;    // [2]: experts that were there so far, and that were fetched
  // What seat_experts() has decided, of one layer at a time. A list of a round has slots + 1 entries.
  int32_t* matrices = nullptr;  // [count + 1]: the slot of each used expert, in its round
  int32_t* rounds = nullptr;    // [slab_rounds(), slots + 1]: the experts of each round, then -1
  int32_t* missing = nullptr;   // as many: those that are to be fetched before the round, then -1
};

// Of a pass that uses up to `used` of the experts.
constexpr int64_t slab_rounds(int64_t slots, int64_t used) { return ceil_div(used, slots); }

// Decides where the used experts will be. Those that are there stay; the others take the place of the experts that were
// used the longest time ago, of equal ones the lower slot, in ascending order.
struct SeatExpertsParams {
  ExpertSlab slab;
  const int32_t* present;  // [listed], device: the used experts, ascending, each in [0, count), then -1
  int64_t listed, count;
  bool shared = false;  // `count` may be among them: a shared expert, which is always in slot `slots`; in round 0
};
void seat_experts(const SeatExpertsParams& params, Stream& stream);

// Fetches what the round lacks. REQUIRES: the experts of the round before are not read any more.
struct FetchExpertsParams {
  ExpertSlab slab;
  int64_t round = 0;
  int64_t most = 0;  // experts, at most
};
void fetch_experts(const FetchExpertsParams& params, Stream& stream);

}  // namespace headrace
