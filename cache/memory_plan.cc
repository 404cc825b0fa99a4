#include "cache/memory_plan.h"

#include <algorithm>

#include "cache/minimum_budgets.h"

namespace headrace {
namespace {

constexpr int kDefaultRingSlots = 4;
constexpr uint64_t kDefaultSlotBytes = 16 * kMiB;  // large enough to reach the link's peak
// Remainders are a quarter of the rows' bytes, and a GPU has too few blocks of attention over 16 MiB of rows: a refresh
// at 61,440 tokens takes 61 ms with slots of 16 MiB, 47 with 32 and 46 with 64 (bench/results/remainders.txt).
constexpr uint64_t kRemainderSlotBytes = 32 * kMiB;
constexpr int kWeightsSlots = 2;      // layers: one is computed, the next arrives
constexpr int kDefaultDiskSlots = 8;  // some being read, some waiting, some being copied to the device

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

// Units of segments in host memory or on disk: small enough that a layer has several, large enough for efficient reads.
uint64_t disk_unit_bytes(uint64_t streamed_bytes, uint64_t slot_bytes) {
  return std::min(slot_bytes, streamed_bytes / 8);
}

struct Shares {
  int64_t resident = 0;    // segments of each layer that stay on the device
  int64_t disk_units = 0;  // of the others, on disk
};

bool may_have_remainders(const PlanInput& in) {
  return in.remainders && in.partial.copy == DType::kInt8 && in.rows.k_type == DType::kBF16 &&
         in.rows.v_type == DType::kBF16 && in.rows.head_dim % 8 == 0 && !in.rows.values_alone;
}

uint64_t slot_bytes(const PlanInput& in) {
  if (in.ring.slot_bytes > 0) return in.ring.slot_bytes;
  return may_have_remainders(in) ? kRemainderSlotBytes : kDefaultSlotBytes;
}

// Of the segments that the prompt fills; those that are sealed later have none.
void add_remainders(const PlanInput& in, MemoryPlan* plan) {
  const int64_t end = segment_of(in.prompt_rows);
  if (plan->host_layers == 0 || end <= plan->resident_segments) return;
  plan->remainder_segments = end;
  plan->remainder_layer_bytes = whole_pages(remainders_bytes(in.rows, plan->resident_segments, end));
  plan->remainder_bytes = u(plan->host_layers) * plan->remainder_layer_bytes;
  plan->remainder_lengths_bytes = whole_pages(u(plan->host_layers * plan->segments + 1) * sizeof(uint32_t));
  plan->remainder_work_bytes = whole_pages(plan->ring_slot_bytes) + plan->remainder_lengths_bytes;
}

void add_weights(const PlanInput& in, MemoryPlan* plan) {
  const std::vector<uint64_t>& layers = in.weights.bytes;
  const bool alone = in.weights.experts_alone;
  const auto stay = static_cast<int64_t>(layers.size()) - in.weights.least_in_host;
  uint64_t largest = 0;  // whichever leave, so that the ring does not grow with their number
  for (int64_t i = 0; i < static_cast<int64_t>(layers.size()); ++i) {
    const auto layer = static_cast<size_t>(i);
    const uint64_t leaves = alone ? in.weights.experts.layers[layer].part_bytes : layers[layer];
    largest = std::max(largest, leaves);
    plan->device_weights_bytes += i < stay ? layers[layer] : layers[layer] - leaves;
    plan->host_weights_bytes += i < stay ? 0 : leaves;
    if (i >= stay && !in.weights.substitutes.empty()) plan->substitute_bytes += in.weights.substitutes[layer];
  }
  plan->host_weights_layers = in.weights.least_in_host;
  if (!plan->streams_weights()) return;
  plan->weights_slot_bytes = largest;
  plan->weights_slots = kWeightsSlots;
  plan->host_experts_alone = alone;
  if (!alone) return;
  const ExpertsInput& experts = in.weights.experts;
  plan->expert_slots = in.weights.expert_slots;
  plan->expert_slab_bytes =
      expert_slab_bytes(experts.last(plan->host_weights_layers), experts.count, plan->expert_slots);
}

// The sizes of a plan with these shares.
MemoryPlan plan_with(const PlanInput& in, Shares shares) {
  MemoryPlan plan;
  add_weights(in, &plan);
  const RowShape exact = in.rows.exact();
  const uint64_t layers = u(in.rows.layers);
  const uint64_t leaving = layers - (in.last_layer_resident ? 1 : 0);  // layers that may have rows in host memory
  plan.segments = segments_for(in.context_rows);
  plan.resident_segments = leaving == 0 ? plan.segments : shares.resident;
  const bool streams = plan.resident_segments < plan.segments;
  plan.host_layers = streams ? static_cast<int64_t>(leaving) : 0;
  uint64_t unit_bytes = 0;
  if (streams) {
    const uint64_t largest = segments_bytes(in.rows, plan.segments - 1, plan.segments);
    plan.active_bytes = leaving * largest;
    plan.ring_slots = in.ring.slots > 0 ? in.ring.slots : kDefaultRingSlots;
    const uint64_t streamed = segments_bytes(in.rows, plan.resident_segments, plan.segments);
    plan.ring_slot_bytes = std::max(largest, std::min(slot_bytes(in), streamed));
    unit_bytes = disk_unit_bytes(streamed, plan.ring_slot_bytes);
  }
  plan.placement = SegmentPlacement(in.rows, plan.segments, plan.resident_segments, unit_bytes, shares.disk_units);
  plan.host_bytes = u(plan.host_layers) * plan.placement.host_bytes();
  plan.disk_bytes = u(plan.host_layers) * plan.placement.disk_bytes();
  plan.resident_bytes = layers * segments_bytes(in.rows, 0, plan.segments) - plan.host_bytes - plan.disk_bytes;
  if (in.rows.values_alone) {
    plan.resident_key_bytes = plan.resident_bytes;
    plan.active_key_bytes = plan.active_bytes;
    plan.ring_key_bytes = plan.ring_slot_bytes;
  }
  plan.tail_bytes = layers * u(kTailRingRows) * exact.bytes();
  plan.pass_bytes = layers * u(in.pass_rows) * exact.bytes();
  plan.partial_bytes = in.partial.bytes(exact, in.context_rows);
  plan.index_bytes = in.partial.blocks > 0 ? block_index_bytes(exact, in.context_rows) : 0;
  plan.late_partial = in.late_partial;
  plan.lean_prefill = in.lean_prefill;
  plan.prefill_int8 = in.prefill_int8;
  plan.host_states_bytes = in.host_states.bytes;
  plan.host_embedding_bytes = in.host_embedding_bytes;
  const int64_t built = segments_for(in.prompt_rows);
  const auto largest = [&](const RowShape& rows, const RowShape& windows) {
    return std::max(readable_bytes(rows, 0, built), ring_bytes(windows, in.windows.built_ring_rows(in.prompt_rows)));
  };
  const RowShape rows = in.rows.built(), windows = in.windows.rows.built();
  plan.layer_buffer_bytes =
      in.two_buffers ? largest(rows, {}) + whole_pages(largest({}, windows)) : largest(rows, windows);
  plan.stored_layer_bytes = in.rows.has_low_bit() ? largest(in.rows, in.windows.rows) : 0;
  if (plan.disk_bytes > 0) {
    plan.disk_slots = in.disk_slots > 0 ? in.disk_slots : kDefaultDiskSlots;
    plan.disk_slot_bytes = plan.placement.largest_unit_bytes();
  }
  if (may_have_remainders(in)) add_remainders(in, &plan);
  return plan;
}

uint64_t disk_ring_bytes(const MemoryPlan& plan) { return whole_pages(u(plan.disk_slots) * plan.disk_slot_bytes); }

uint64_t prefill_bytes(const PlanInput& in, const MemoryPlan& plan) {
  const uint64_t one_index = plan.late_partial ? whole_pages(plan.index_bytes / u(in.rows.layers)) : 0;
  return whole_pages(plan.layer_buffer_bytes) + whole_pages(plan.stored_layer_bytes) + one_index +
         in.prefill_work.bytes + (plan.host_experts_alone ? plan.weights_ring_bytes() : 0);
}
uint64_t decode_bytes(const PlanInput& in, const MemoryPlan& plan) {
  return whole_pages(u(plan.ring_slots) * plan.ring_slot_bytes) + whole_pages(plan.ring_key_bytes) +
         in.decode_work.bytes + plan.expert_slab_bytes;
}

MemoryPlan planned(const PlanInput& in, Shares shares) {
  MemoryPlan plan = plan_with(in, shares);
  const uint64_t lasting = whole_pages(plan.resident_bytes + plan.resident_key_bytes) + whole_pages(plan.tail_bytes) +
                           whole_pages(plan.pass_bytes) + whole_pages(plan.active_bytes + plan.active_key_bytes) +
                           plan.remainder_work_bytes + (plan.host_experts_alone ? 0 : plan.weights_ring_bytes());
  const uint64_t partial = whole_pages(plan.partial_bytes) + whole_pages(plan.index_bytes);
  plan.decode_vram_bytes = lasting + decode_bytes(in, plan) + partial;
  plan.vram_bytes =
      std::max(lasting + prefill_bytes(in, plan) + (plan.late_partial ? 0 : partial), plan.decode_vram_bytes);
  plan.host_total_bytes = whole_pages(plan.host_bytes) + plan.remainder_bytes + plan.remainder_lengths_bytes +
                          disk_ring_bytes(plan) + in.pinned_work_bytes + plan.host_states_bytes +
                          plan.host_embedding_bytes + plan.host_weights_bytes +
                          (plan.host_experts_alone ? kExpertPinnedBytes : 0);
  return plan;
}

std::string partial_label(const PlanInput& in, const MemoryPlan& plan) {
  const char* const late = plan.late_partial ? ", once prefill's memory is free" : "";
  if (!in.partial.copy) return str("partial KV: blocks", late);
  return str("partial KV: a copy of all rows in ", dtype_name(*in.partial.copy), late);
}

const char* prefill_label(const MemoryPlan& plan) {
  return plan.lean_prefill ? "prefill: a layer's buffer, one dequantised matrix and other work"
                           : "prefill: a layer's buffer and work";
}

std::string host_weights_label(const PlanInput& in, const MemoryPlan& plan) {
  const std::string layers = str(plan.host_weights_layers, " of ", in.weights.bytes.size(), " layers");
  return plan.host_experts_alone
             ? str("experts of ", layers, ", which cross the link for a prompt and where a step lacks one")
             : str("weights of ", layers, ", which cross the link in every pass",
                   plan.substitutes() ? " but partial steps" : "");
}

uint64_t parts_bytes(const PlanInput& in, WorkPart::Of of) {
  uint64_t bytes = 0;
  for (const WorkPart& part : in.parts) bytes += part.of == of ? part.bytes : 0;
  return bytes;
}

PlanLine line_of(const WorkPart& part) {
  const Tier tier = part.of == WorkPart::Of::kHost ? Tier::kHost : Tier::kVram;
  return {str(part.of == WorkPart::Of::kDecode ? "decode: " : "", part.what), tier, part.bytes};
}

std::vector<PlanLine> lines_of(const PlanInput& in, const MemoryPlan& plan) {
  const int64_t on_disk = plan.placement.disk_segments();
  const auto share = [&](int64_t segments) {
    return str("KV cache, ", segments, " of ", plan.segments, " segments a layer");
  };
  const uint64_t lasting = parts_bytes(in, WorkPart::Of::kRun);
  const uint64_t ring_of_prefill = plan.host_experts_alone ? plan.weights_ring_bytes() : 0;
  std::vector<PlanLine> lines = {
      {share(plan.resident_segments) +
           (plan.host_layers > 0 && plan.host_layers < in.rows.layers ? ", all of the last layer" : ""),
       Tier::kVram, plan.resident_bytes},
      {share(plan.segments - plan.resident_segments - on_disk), Tier::kHost, plan.host_bytes},
      {share(on_disk), Tier::kDisk, plan.disk_bytes},
      {"what the int8 copy lacks of these rows", Tier::kHost, plan.remainder_bytes + plan.remainder_lengths_bytes},
      {"KV cache, tail", Tier::kVram, plan.tail_bytes},
      {"KV cache, rows of one pass", Tier::kVram, plan.pass_bytes},
      {"KV cache, active segment", Tier::kVram, plan.active_bytes},
      {"keys made of these values", Tier::kVram, plan.resident_key_bytes + plan.active_key_bytes},
      {partial_label(in, plan), Tier::kVram, plan.partial_bytes},
      {"block summaries", Tier::kVram, plan.index_bytes},
      {"rows made of the copy and what it lacks", Tier::kVram, plan.remainder_work_bytes},
      {prefill_label(plan), Tier::kVram, prefill_bytes(in, plan) - lasting - ring_of_prefill},
      {"decode: staging ring and work", Tier::kVram,
       decode_bytes(in, plan) - plan.expert_slab_bytes - lasting - parts_bytes(in, WorkPart::Of::kDecode)},
      {"ring between disk and link", Tier::kHost, disk_ring_bytes(plan)},
      {host_weights_label(in, plan), Tier::kHost, plan.host_weights_bytes},
      {"substitutes of these layers, for partial steps", Tier::kVram, plan.substitute_bytes},
      {plan.host_experts_alone ? "prefill: ring for experts" : "ring for weights", Tier::kVram,
       plan.weights_ring_bytes()},
      {str("decode: slab of experts, ", plan.expert_slots, " of ", in.weights.experts.count, " a layer"), Tier::kVram,
       plan.expert_slab_bytes},
      {"embeddings", Tier::kHost, plan.host_embedding_bytes},
      {"the prompt's states, while prefill runs", Tier::kHost, plan.host_states_bytes},
      {"step inputs and results", Tier::kHost, in.pinned_work_bytes - parts_bytes(in, WorkPart::Of::kHost)},
      {"state of the slabs of experts", Tier::kHost, plan.host_experts_alone ? kExpertPinnedBytes : 0}};
  for (const WorkPart& part : in.parts) lines.push_back(line_of(part));
  return lines;
}

bool fits_memory(const PlanInput& in, const MemoryPlan& plan) {
  const uint64_t vram_bytes = plan.all_vram_bytes();
  return vram_bytes <= in.vram_free && plan.host_total_bytes <= in.host_free && vram_bytes <= in.total_free &&
         plan.host_total_bytes <= in.total_free - vram_bytes;
}

bool fits(const PlanInput& in, const MemoryPlan& plan) {
  return fits_memory(in, plan) && plan.disk_bytes <= in.disk_free;
}

// Uses the smallest disk share with which the rest fits; if none does, all of it is on disk. Each unit more leaves less
// in host memory, except the first, which adds the ring.
MemoryPlan with_disk(const PlanInput& in, int64_t resident) {
  MemoryPlan plan = planned(in, {resident, 0});
  if (in.disk_free == 0 || plan.host_bytes == 0 || fits_memory(in, plan)) return plan;
  int64_t low = 0, high = plan.placement.units();
  plan = planned(in, {resident, high});
  if (!fits_memory(in, plan)) return plan;
  while (low + 1 < high) {
    const int64_t middle = (low + high) / 2;
    (fits_memory(in, planned(in, {resident, middle})) ? high : low) = middle;
  }
  return planned(in, {resident, high});
}

// Whether the device has room for `resident` segments if all others are where they take the least memory. The host's
// own limit is not checked: fewer resident segments need more of it.
bool may_stay(const PlanInput& in, int64_t resident) {
  MemoryPlan plan = planned(in, {resident, 0});
  if (in.disk_free > 0) plan = planned(in, {resident, plan.placement.units()});
  const uint64_t host_bytes = in.disk_free > 0 ? plan.host_total_bytes : 0;
  const uint64_t vram_bytes = plan.all_vram_bytes();
  return vram_bytes <= std::min(in.vram_free, in.total_free) && host_bytes <= in.total_free - vram_bytes;
}

// The largest number of resident segments that fits, or -1. With all segments resident there is no ring, and with few
// others a smaller one, so these cases are tried one by one. Below them the need grows with each resident segment, so a
// binary search finds the number. Segments without room elsewhere then have none with fewer resident either, apart from
// the granularity of a disk unit.
int64_t most_resident(const PlanInput& in, int64_t segments) {
  constexpr int64_t kGrains = 16;
  const uint64_t ring = std::max(in.ring.slot_bytes, kRemainderSlotBytes);
  int64_t high = segments;
  for (; high >= 0 && (high == segments || segments_bytes(in.rows, high, segments) <= ring); --high) {
    if (fits(in, with_disk(in, high))) return high;
  }
  int64_t low = -1;  // fits, or is none
  for (++high; low + 1 < high;) {
    const int64_t middle = low + (high - low) / 2;
    (may_stay(in, middle) ? low : high) = middle;
  }
  const int64_t last = in.disk_free > 0 ? std::max<int64_t>(0, low - kGrains) : low;
  for (; low >= 0 && low >= last; --low) {
    if (fits(in, with_disk(in, low))) return low;
  }
  return -1;
}

// The plan of the mode; if nothing fits, one that does not. The disk is used last.
MemoryPlan best_placement(const PlanInput& in) {
  const int64_t segments = segments_for(in.context_rows);
  const bool all = in.mode == KvMode::kDevice || in.partial.exact;  // partial steps read the full KV itself
  int64_t resident = all ? segments : 0;
  if (in.mode == KvMode::kAuto && !all) {
    PlanInput memory = in;
    memory.disk_free = 0;
    resident = most_resident(memory, segments);
    if (resident >= 0) return planned(in, {resident, 0});
    resident = in.disk_free > 0 ? std::max<int64_t>(0, most_resident(in, segments)) : 0;
  }
  return with_disk(in, resident);
}

// Remainders only where all fits in memory with them.
MemoryPlan best_plan(const PlanInput& in) {
  PlanInput without = in;
  without.remainders = false;
  if (!may_have_remainders(in)) return best_placement(without);
  PlanInput memory = in;
  memory.disk_free = 0;
  MemoryPlan plan = best_placement(memory);
  return fits(memory, plan) ? plan : best_placement(without);
}

// Summaries are made of keys as they are stored, and a copy of rows as they are, so an int8 cache has no late partial
// KV.
bool may_be_late(const PlanInput& in) {
  return in.partial.copy ? !in.rows.has_low_bit() : in.partial.blocks > 0 && !low_bit(in.rows.k_type);
}

}  // namespace

std::string MemoryPlan::to_string() const {
  std::string text;
  for (const PlanLine& line : lines) {
    if (line.bytes > 0) text += str(tier_name(line.tier), "  ", format_bytes(line.bytes), "  ", line.what, "\n");
  }
  return text;
}

namespace {

// With the weights where they are.
std::optional<MemoryPlan> plan_beside_weights(const PlanInput& input) {
  MemoryPlan plan = best_plan(input);
  if (!fits(input, plan) && may_be_late(input)) {
    PlanInput late = input;
    late.late_partial = true;
    plan = best_plan(late);
  }
  if (!fits(input, plan)) return std::nullopt;
  plan.lines = lines_of(input, plan);
  return plan;
}

PlanInput with_host_weights(PlanInput in, int64_t layers) {
  in.weights.least_in_host = layers;
  return in;
}

// The fewest layers that leave the device so that the rest fits there, if the host has room for whatever leaves. Rows
// leave first: a byte of weights crosses the link in every pass, a byte of rows in those alone that read all of them,
// once it is there.
int64_t fewest_host_weights(PlanInput in) {
  in.host_free = in.total_free = UINT64_MAX;
  int64_t low = in.weights.least_in_host, high = static_cast<int64_t>(in.weights.bytes.size());
  if (plan_beside_weights(in)) return low;
  low = std::max<int64_t>(low, kWeightsSlots);  // a ring is no smaller than they are
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (plan_beside_weights(with_host_weights(in, middle)) ? high : low) = middle;
  }
  return high;
}

std::optional<MemoryPlan> plan_of_layers(const PlanInput& input) {
  const LayerWeightsInput& weights = input.weights;
  const auto layers = static_cast<int64_t>(weights.bytes.size());
  return plan_beside_weights(with_host_weights(input, weights.all_in_host ? layers : fewest_host_weights(input)));
}

// Experts leave before rows: a step reads all rows of a full pass, and few experts. Whole layers leave where nothing
// fits otherwise.
std::optional<MemoryPlan> plan_of_experts(const PlanInput& input) {
  const LayerWeightsInput& weights = input.weights;
  if (weights.least_in_host > 0 && !weights.experts_alone) return plan_of_layers(input);
  std::optional<MemoryPlan> there;  // with all weights on the device
  if (weights.least_in_host == 0 && !weights.all_in_host) there = plan_beside_weights(input);
  if (there && (there->host_layers == 0 || input.mode != KvMode::kAuto)) return there;
  std::optional<MemoryPlan> plan = plan_with_experts(input, plan_beside_weights);
  if (plan && (!there || plan->resident_segments > there->resident_segments)) return plan;
  if (there) return there;
  PlanInput whole = with_host_weights(input, 0);
  whole.weights.experts_alone = false;
  return plan_of_layers(whole);
}

}  // namespace

std::optional<MemoryPlan> try_plan(const PlanInput& input) {
  CHECK(input.prompt_rows > 0 && input.context_rows >= input.prompt_rows && input.pass_rows > 0);
  const LayerWeightsInput& weights = input.weights;
  const auto layers = static_cast<int64_t>(weights.bytes.size());
  CHECK(weights.least_in_host >= 0 && weights.least_in_host <= layers, "least_in_host=", weights.least_in_host);
  if (weights.bytes.empty()) return plan_beside_weights(input);
  if (!weights.experts.layers.empty()) return plan_of_experts(input);
  return plan_of_layers(input);
}

MemoryPlan make_plan(const PlanInput& input) {
  std::optional<MemoryPlan> plan = try_plan(input);
  if (!plan) throw DoesNotFit(input, minimum_budgets(input));
  return *std::move(plan);
}

}  // namespace headrace
