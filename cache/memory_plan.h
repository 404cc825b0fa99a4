// The memory plan of one run (docs/design.md, section 10): what lives where, decided before anything is allocated. A
// printable value; the engine executes this same object. Budgets that are too small are refused with what would fit
// (cache/minimum_budgets.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/partial.h"
#include "cache/placement.h"

namespace headrace {

// Where the full KV lives. kAuto: as many segments resident as the budget leaves room for.
enum class KvMode : uint8_t { kAuto, kDevice, kHost };

// Device memory that a phase takes beside the KV cache: what it is for the lengths of this plan, in whole pages, and
// how it grows with them, so that a refusal can say which context would fit.
struct WorkBytes {
  uint64_t bytes = 0;
  uint64_t per_context_row = 0, per_prompt_row = 0;
};

struct PlanInput {
  RowShape rows;
  int64_t prompt_rows = 0;   // what prefill computes
  int64_t context_rows = 0;  // the most rows the run may come to: prompt, output, a pass's own
  int64_t pass_rows = 1;     // the largest tree a step may verify
  KvMode mode = KvMode::kAuto;
  PartialShape partial{};            // no blocks: no partial verification
  bool last_layer_resident = false;  // whatever the mode: a draft reads its rows
  uint64_t vram_free = 0, host_free = 0;
  uint64_t disk_free = 0;            // 0: nothing may live on disk; else what host memory cannot hold may
  uint64_t total_free = UINT64_MAX;  // of both tiers together, where they share a memory (the CPU)
  uint64_t vram_most = UINT64_MAX;   // with a shared memory: the maximum of vram_free if more of it were free
  WorkBytes prefill_work;            // beside the layer buffer: hidden states, activations
  WorkBytes decode_work;             // beside the staging ring: states, activations, logits
  uint64_t pinned_work_bytes = 0;    // host side of a step's inputs and results
  int ring_slots = 0;                // 0: the default
  uint64_t ring_slot_bytes = 0;      // 0: the default; rounded up to hold a whole segment
  int disk_slots = 0;                // of the pinned ring between disk and link; 0: the default
};

struct PlanLine {
  std::string what;
  Tier tier = Tier::kVram;
  uint64_t bytes = 0;
};

struct MemoryPlan {
  int64_t segments = 0;  // a layer's
  // [0, resident_segments) of each layer stay on the device. The rest live in host memory and on disk, as `places` has
  // it, for layers [0, host_layers), and on the device for the others.
  int64_t resident_segments = 0, host_layers = 0;
  SegmentPlacement placement;
  int ring_slots = 0;  // 0: nothing is streamed
  uint64_t ring_slot_bytes = 0;
  int disk_slots = 0;  // 0: nothing lives on disk
  uint64_t disk_slot_bytes = 0;
  uint64_t resident_bytes = 0, host_bytes = 0, disk_bytes = 0, active_bytes = 0, tail_bytes = 0, pass_bytes = 0,
           layer_buffer_bytes = 0;
  uint64_t partial_bytes = 0, index_bytes = 0;    // of the partial KV, and of the summaries of all blocks
  std::vector<PlanLine> lines;                    // what the numbers above are, for people
  uint64_t vram_bytes = 0, host_total_bytes = 0;  // peaks

  uint64_t kv_bytes() const { return resident_bytes + host_bytes + disk_bytes; }
  std::string to_string() const;
};

// Rows of the ring that holds the last committed rows of each layer (the tail of docs/design.md, section 6): a power of
// two with room for the longest tail.
constexpr int64_t kTailRingRows = 512;
static_assert(kTailRingRows >= kTailWindow + kPrefixTile - 1 + kMaxPending);  // pending rows lie in it, too

// None: it does not fit.
std::optional<MemoryPlan> try_plan(const PlanInput& input);
// Throws DoesNotFit.
MemoryPlan make_plan(const PlanInput& input);

}  // namespace headrace
