#include "cache/planner.h"

#include <algorithm>

namespace headrace {
namespace {

constexpr int kDefaultRingSlots = 4;
constexpr uint64_t kDefaultSlotBytes = 16 * kMiB;  // where a link comes to its peak

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

// The plan's sizes if `resident` segments of each layer stay on the device.
MemoryPlan plan_with(const PlanInput& in, int64_t resident) {
  MemoryPlan plan;
  const uint64_t layers = u(in.rows.layers), row_bytes = in.rows.bytes();
  const uint64_t leaving = layers - (in.last_layer_resident ? 1 : 0);  // layers that may have rows in host memory
  plan.segments = segments_for(in.context_rows);
  if (leaving == 0) resident = plan.segments;
  plan.resident_segments = resident;
  plan.host_layers = resident < plan.segments ? static_cast<int64_t>(leaving) : 0;
  plan.host_bytes = u(plan.host_layers) * segments_bytes(in.rows, resident, plan.segments);
  plan.resident_bytes = layers * segments_bytes(in.rows, 0, plan.segments) - plan.host_bytes;
  plan.tail_bytes = layers * u(kTailRingRows) * row_bytes;
  plan.pass_bytes = layers * u(in.pass_rows) * row_bytes;
  plan.partial_bytes = in.partial.bytes(in.rows);
  plan.index_bytes = in.partial.blocks > 0 ? block_index_bytes(in.rows, in.context_rows) : 0;
  plan.layer_buffer_bytes = segments_bytes(in.rows, 0, segments_for(in.prompt_rows));
  if (resident < plan.segments) {
    const uint64_t largest = u(segment_range(plan.segments - 1).rows) * row_bytes;
    plan.open_bytes = leaving * largest;
    plan.ring_slots = in.ring_slots > 0 ? in.ring_slots : kDefaultRingSlots;
    const uint64_t streamed = segments_bytes(in.rows, resident, plan.segments);
    const uint64_t wanted = in.ring_slot_bytes > 0 ? in.ring_slot_bytes : kDefaultSlotBytes;
    plan.ring_slot_bytes = std::max(largest, std::min(wanted, streamed));
  }
  return plan;
}

void add_up(const PlanInput& in, MemoryPlan* plan) {
  const uint64_t ring = whole_pages(u(plan->ring_slots) * plan->ring_slot_bytes);
  const uint64_t lasting = whole_pages(plan->resident_bytes) + whole_pages(plan->tail_bytes) +
                           whole_pages(plan->pass_bytes) + whole_pages(plan->open_bytes) +
                           whole_pages(plan->partial_bytes) + whole_pages(plan->index_bytes);
  const uint64_t prefill = whole_pages(plan->layer_buffer_bytes) + in.prefill_work.bytes;
  const uint64_t decode = ring + in.decode_work.bytes;
  plan->vram_bytes = lasting + std::max(prefill, decode);
  plan->host_total_bytes = whole_pages(plan->host_bytes) + in.pinned_work_bytes;
  plan->lines = {
      {str("KV cache, ", plan->resident_segments, " of ", plan->segments, " segments a layer",
           plan->host_layers > 0 && plan->host_layers < in.rows.layers ? ", all of the last layer" : ""),
       Tier::kVram, plan->resident_bytes},
      {str("KV cache, ", plan->segments - plan->resident_segments, " of ", plan->segments, " segments a layer"),
       Tier::kHost, plan->host_bytes},
      {"KV cache, tail", Tier::kVram, plan->tail_bytes},
      {"KV cache, rows of one pass", Tier::kVram, plan->pass_bytes},
      {"KV cache, open segment", Tier::kVram, plan->open_bytes},
      {"partial KV", Tier::kVram, plan->partial_bytes},
      {"block summaries", Tier::kVram, plan->index_bytes},
      {"prefill: a layer's buffer and work", Tier::kVram, prefill},
      {"decode: staging ring and work", Tier::kVram, decode},
      {"step inputs and results", Tier::kHost, in.pinned_work_bytes}};
}

bool fits(const PlanInput& in, const MemoryPlan& plan) {
  return plan.vram_bytes <= in.vram_free && plan.host_total_bytes <= in.host_free && plan.vram_bytes <= in.total_free &&
         plan.host_total_bytes <= in.total_free - plan.vram_bytes;
}

MemoryPlan planned(const PlanInput& in, int64_t resident) {
  MemoryPlan plan = plan_with(in, resident);
  add_up(in, &plan);
  return plan;
}

// The most segments that fit, or -1. Bytes grow with each resident segment on the device, so a binary search would do,
// but a layer has a few hundred segments at most.
int64_t most_resident(const PlanInput& in, int64_t segments) {
  for (int64_t resident = segments; resident >= 0; --resident) {
    if (fits(in, planned(in, resident))) return resident;
  }
  return -1;
}

WorkBytes shrunk(WorkBytes work, int64_t context_rows, int64_t prompt_rows) {
  const uint64_t less = u(context_rows) * work.per_context_row + u(prompt_rows) * work.per_prompt_row;
  work.bytes -= std::min(work.bytes, less);
  return work;
}

// The same run with a shorter context: the prompt shrinks, then the answer.
PlanInput with_context(PlanInput in, int64_t context) {
  const int64_t output = in.context_rows - in.prompt_rows, prompt = std::max<int64_t>(1, context - output);
  for (WorkBytes* work : {&in.prefill_work, &in.decode_work}) {
    *work = shrunk(*work, in.context_rows - context, in.prompt_rows - prompt);
  }
  in.prompt_rows = prompt;
  in.context_rows = context;
  return in;
}

// The longest context that would fit these budgets, in rows; 0 if none does.
int64_t largest_context(const PlanInput& in) {
  int64_t low = 0, high = in.context_rows;
  while (low + 1 < high) {
    const PlanInput shorter = with_context(in, (low + high) / 2);
    const int64_t segments = segments_for(shorter.context_rows);
    const bool good = in.mode == KvMode::kAuto
                          ? most_resident(shorter, segments) >= 0
                          : fits(shorter, planned(shorter, in.mode == KvMode::kDevice ? segments : 0));
    (good ? low : high) = (low + high) / 2;
  }
  return low;
}

[[noreturn]] void refuse(const PlanInput& in, const MemoryPlan& plan) {
  const bool vram = plan.vram_bytes > in.vram_free || plan.vram_bytes > in.total_free;
  const uint64_t asked = vram ? plan.vram_bytes : plan.host_total_bytes;
  const uint64_t left = in.total_free - std::min(in.total_free, plan.vram_bytes);
  const uint64_t free = vram ? std::min(in.vram_free, in.total_free) : std::min(in.host_free, left);
  const int64_t context = largest_context(in);
  throw_error(ExitCode::kDoesNotFit, vram ? "--vram" : "--host-mem",
              str("needs ", format_bytes(asked), " for a context of ", in.context_rows, " tokens, ", format_bytes(free),
                  " are free"),
              str(context > 0 ? str("A context of ", context, " tokens would fit (-c, -n or --truncate middle)")
                              : std::string("No context fits"),
                  "; or raise ", vram ? "--vram" : "--host-mem",
                  vram && in.partial.blocks > 0 ? ", take a smaller --partial-budget or --verify full" : "",
                  in.mode == KvMode::kDevice ? ", or let the KV cache leave the device (--kv auto)." : "."));
}

}  // namespace

const char* tier_name(Tier tier) { return tier == Tier::kVram ? "vram" : tier == Tier::kHost ? "host" : "disk"; }

std::string MemoryPlan::to_string() const {
  std::string text;
  for (const PlanLine& line : lines) {
    if (line.bytes > 0) text += str(tier_name(line.tier), "  ", format_bytes(line.bytes), "  ", line.what, "\n");
  }
  return text;
}

MemoryPlan make_plan(const PlanInput& input) {
  CHECK(input.prompt_rows > 0 && input.context_rows >= input.prompt_rows && input.pass_rows > 0);
  const int64_t segments = segments_for(input.context_rows);
  int64_t resident = input.mode == KvMode::kDevice ? segments : 0;
  if (input.mode == KvMode::kAuto) resident = std::max<int64_t>(0, most_resident(input, segments));
  const MemoryPlan plan = planned(input, resident);
  if (!fits(input, plan)) refuse(input, plan);
  return plan;
}

}  // namespace headrace
