// The memory plan of one run (docs/design.md, section 10): where everything is, decided before anything is allocated. A
// printable value, and the engine executes this same object. If a budget is too small, the error says what would fit
// (cache/minimum_budgets.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cache/expert_slab.h"
#include "cache/partial.h"
#include "cache/placement.h"
#include "cache/window.h"

namespace headrace {

// Where the full KV is. kAuto: as many resident segments as the budget allows.
enum class KvMode : uint8_t { kAuto, kDevice, kHost };

// Where the weights of layers are (--weights-place). kAuto: on the device; where nothing fits so, as many as fit there,
// and the others in host memory. kHost: all in host memory.
enum class WeightsPlace : uint8_t { kAuto, kDevice, kHost };

// The weights of layers that may be in host memory. They cross the link in every pass, or with substitutes in every
// pass but partial steps, through a ring of whole layers. Experts may leave alone: then prefill has such a ring, and
// steps fetch what a slab of them lacks.
struct LayerWeightsInput {
  // Of each layer, in whole pages; empty: all weights stay, and the budgets are without them.
  std::vector<uint64_t> bytes{};
  // What a layer in host memory has on the device in its place, for partial steps; as many, or empty: nothing.
  std::vector<uint64_t> substitutes{};
  int64_t least_in_host = 0;  // of the last layers
  bool all_in_host = false;
  ExpertsInput experts{};
  bool experts_alone = false;  // what least_in_host counts are layers whose experts have left alone
  int64_t expert_slots = 0;    // then: of a layer's slab, as plan_with_experts() tries them
};

// Device memory of a phase beside the KV cache, in whole pages: the size for the lengths of this plan, and how it grows
// with them, from which the longest context that fits is computed.
struct WorkBytes {
  uint64_t bytes = 0;
  uint64_t per_context_row = 0, per_prompt_row = 0;
};

// A part of the work memory that has a line of its own in the plan.
struct WorkPart {
  enum class Of : uint8_t { kRun, kDecode, kHost };  // device memory of the whole run, of decoding; host memory
  const char* what;
  uint64_t bytes;
  Of of;
};

// The staging ring that is asked for, and the slabs of experts; 0: the default.
struct RingOptions {
  int slots = 0;
  uint64_t slot_bytes = 0;   // rounded up to hold a whole segment
  int64_t expert_slots = 0;  // of a layer, at most; 0: as many as there is room for
};

struct PlanInput {
  RowShape rows;
  WindowShape windows{};     // of layers with a window, which prefill builds in the same buffer; no layers: none
  bool two_buffers = false;  // in another one: later layers read the rows of the last layer of each kind
  int64_t prompt_rows = 0;   // rows that prefill computes
  int64_t context_rows = 0;  // most rows of the run: prompt, output, rows of one pass
  int64_t pass_rows = 1;     // largest tree that a step may verify
  KvMode mode = KvMode::kAuto;
  PartialShape partial{};            // off: no partial verification
  bool last_layer_resident = false;  // in every mode: a draft reads its rows, or layers without rows do
  uint64_t vram_free = 0, host_free = 0;
  uint64_t disk_free = 0;             // disk space for what host memory cannot hold; 0: no disk tier
  uint64_t total_free = UINT64_MAX;   // both tiers together if they share one memory (the CPU)
  uint64_t vram_most = UINT64_MAX;    // with a shared memory: the limit of vram_free
  LayerWeightsInput weights{};        // vram_free and host_free include what these take now
  WorkBytes prefill_work;             // beside the layer buffer: hidden states, activations
  WorkBytes decode_work;              // beside the staging ring: states, activations, logits
  uint64_t pinned_work_bytes = 0;     // host copies of a step's inputs and results
  WorkBytes host_states;              // of the prompt, where they are in host memory and not in prefill_work
  uint64_t host_embedding_bytes = 0;  // that the run moves to host memory; vram_free is without them
  std::vector<WorkPart> parts{};      // of prefill_work, decode_work and pinned_work_bytes
  RingOptions ring{};
  int disk_slots = 0;  // of the pinned ring between disk and link; 0: the default
  // Beside an int8 copy of bf16 rows, if host memory has room without a disk: what the copy lacks of the rows in host
  // memory, so that a refresh streams fewer bytes. Without such a copy it changes nothing.
  bool remainders = false;
  bool late_partial = false;  // see MemoryPlan; try_plan() sets it where nothing fits otherwise
  bool lean_prefill = false;  // see MemoryPlan; prefill_work is then such a prefill's
  bool prefill_int8 = false;  // prefill in 8 bits, whose work memory prefill_work has
};

struct PlanLine {
  std::string what;
  Tier tier = Tier::kVram;
  uint64_t bytes = 0;
};

struct MemoryPlan {
  int64_t segments = 0;  // of one layer
  // [0, resident_segments) of each layer stay on the device. In layers [0, host_layers) the other segments are in host
  // memory and on disk, by `placement`; in the remaining layers they are on the device.
  int64_t resident_segments = 0, host_layers = 0;
  SegmentPlacement placement;
  int ring_slots = 0;  // 0: nothing is streamed
  uint64_t ring_slot_bytes = 0;
  int disk_slots = 0;  // 0: no disk tier
  uint64_t disk_slot_bytes = 0;
  uint64_t resident_bytes = 0, host_bytes = 0, disk_bytes = 0, active_bytes = 0, tail_bytes = 0, pass_bytes = 0,
           layer_buffer_bytes = 0;
  // Where segments have V alone, their K on the device: of the resident and the active ones, and of a slot of the ring.
  uint64_t resident_key_bytes = 0, active_key_bytes = 0, ring_key_bytes = 0;
  uint64_t stored_layer_bytes = 0;  // the layer that prefill builds in its stored types, too; 0: no type is low-bit
  uint64_t partial_bytes = 0, index_bytes = 0;  // the partial KV, and the summaries of all blocks, if it has blocks
  // The partial KV is allocated once prefill's memory is free, and filled by a pass over the full KV. With blocks,
  // prefill then has summaries of one layer at a time, by which it selects them. With a copy, the pass makes its
  // remainders, too.
  bool late_partial = false;
  // Prefill dequantises each matrix right before its product, for every group of rows, so that it has one at a time in
  // place of a layer's.
  bool lean_prefill = false;
  bool prefill_int8 = false;  // prefill in 8 bits: the same matrices are converted to int8 in place of dequantised
  // The prompt's states, in host memory while prefill runs, and the model's embeddings; 0: they are on the device.
  uint64_t host_states_bytes = 0, host_embedding_bytes = 0;
  // The last layers' weights are in host memory; 0: all are on the device. The planner counts those of the other
  // layers, device_weights_bytes, where some may leave; vram_bytes is without them and without substitutes.
  int64_t host_weights_layers = 0;
  uint64_t host_weights_bytes = 0, device_weights_bytes = 0;
  uint64_t substitute_bytes = 0;  // on the device, of the layers in host memory; 0: they have none
  int weights_slots = 0;          // of the ring; a slot holds what a layer has in host memory
  uint64_t weights_slot_bytes = 0;
  bool host_experts_alone = false;  // of these layers the experts alone; prefill has the ring, steps have slabs
  int64_t expert_slots = 0;         // experts of each such layer on the device
  uint64_t expert_slab_bytes = 0;
  uint64_t decode_vram_bytes = 0;  // the peak once prefill's memory is free
  // Segments [resident_segments, remainder_segments) of the layers with rows in host memory have remainders there, too;
  // 0: none. Their work memory is on the device: a slot's rows, and the lengths of all lists, which are also in host
  // memory.
  int64_t remainder_segments = 0;
  uint64_t remainder_layer_bytes = 0, remainder_bytes = 0, remainder_work_bytes = 0, remainder_lengths_bytes = 0;
  std::vector<PlanLine> lines;                    // the numbers above with labels, for printing
  uint64_t vram_bytes = 0, host_total_bytes = 0;  // peaks

  bool streams_weights() const { return host_weights_layers > 0; }
  bool streams() const { return ring_slots > 0 || streams_weights(); }  // rows or weights, in full passes
  bool substitutes() const { return substitute_bytes > 0; }             // partial steps stream nothing
  uint64_t all_vram_bytes() const { return vram_bytes + device_weights_bytes + substitute_bytes; }
  uint64_t weights_ring_bytes() const { return whole_pages(static_cast<uint64_t>(weights_slots) * weights_slot_bytes); }
  uint64_t kv_bytes() const { return resident_bytes + host_bytes + disk_bytes; }
  std::string to_string() const;
};

// Rows of the ring that holds the last committed rows of each layer (the tail, docs/design.md, section 6): a power of
// two that holds the longest tail.
constexpr int64_t kTailRingRows = 512;
static_assert(kTailRingRows >= kTailWindow + kPrefixTile - 1 + kMaxPending);  // pending rows are in it, too

// None if the run does not fit.
std::optional<MemoryPlan> try_plan(const PlanInput& input);
// Throws DoesNotFit.
MemoryPlan make_plan(const PlanInput& input);

}  // namespace headrace
