// Experts in host memory: what a slab of them takes on the device, what it is expected to spare, and the plan with one
// (docs/design.md, section 8).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace headrace {

struct MemoryPlan;
struct PlanInput;

// Of a layer; all 0 where it has no experts.
struct ExpertLayer {
  uint64_t part_bytes = 0;   // that leave the device with its experts, in whole pages
  uint64_t slot_bytes = 0;   // of one expert in a slab
  uint64_t fixed_bytes = 0;  // in a slab, whatever its slots are: a shared expert
};

struct ExpertsInput {
  std::vector<ExpertLayer> layers{};  // empty: the model has no experts
  int64_t count = 0, used = 0;        // of a layer, at most: experts, and those that a row uses

  std::span<const ExpertLayer> last(int64_t layers_that_leave) const {
    return std::span(layers).last(static_cast<size_t>(layers_that_leave));
  }
};

// Of a run: experts that its steps used, each once a layer and pass, and those of them that were fetched.
struct ExpertUse {
  uint64_t used = 0, fetched = 0, fetched_bytes = 0;
};

// Parts of a layer's slab, and of what all layers share, begin at multiples of this.
constexpr uint64_t kSlabAlign = 256;
// Pinned, where there is one: what is uploaded to it at first, and downloaded at last.
constexpr uint64_t kExpertPinnedBytes = 16 * 1024;
// Of a layer's slab, beside its parts.
uint64_t expert_state_bytes(int64_t slots);
// Bytes on the device of slabs of `slots` experts for these layers, in whole pages.
uint64_t expert_slab_bytes(std::span<const ExpertLayer> layers, int64_t count, int64_t slots);

// The share of a step's experts that a slab of `slots` of `count` experts, least recently used ones leaving first, is
// expected to have: (slots / count)^a, where a is such that half of 128 experts give 67% and half of 256 give 81%
// (published; docs/design.md, section 10). In between, and below 128 up to a = 1, a is linear in log2(count).
double expert_hit_rate(int64_t slots, int64_t count);

// The plan in which experts of the last layers are in host memory, and all that is left of the device is their slab.
// How many layers: as many as make the fewest bytes cross the link in a step, of those plans that fit. `beside` plans
// the rest with weights where the input has them. None: nothing fits so, or the model has no experts.
using PlanBeside = std::function<std::optional<MemoryPlan>(const PlanInput&)>;
std::optional<MemoryPlan> plan_with_experts(const PlanInput& input, const PlanBeside& beside);

}  // namespace headrace
