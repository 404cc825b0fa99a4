#include "cache/expert_slab.h"

#include <algorithm>
#include <cmath>

#include "cache/memory_plan.h"

namespace headrace {
namespace {

constexpr int64_t kTriedPlacements = 8;

constexpr uint64_t as_bytes(int64_t value) { return static_cast<uint64_t>(value); }
uint64_t words_bytes(int64_t words) { return round_up(as_bytes(words) * sizeof(int32_t), kSlabAlign); }

PlanInput with_experts(const PlanInput& input, int64_t layers, int64_t slots) {
  PlanInput in = input;
  in.weights.experts_alone = true;
  in.weights.least_in_host = layers;
  in.weights.expert_slots = slots;
  return in;
}

// That a step of one row is expected to fetch.
double step_bytes(const PlanInput& in, const MemoryPlan& plan) {
  const ExpertsInput& experts = in.weights.experts;
  const double lacks = 1 - expert_hit_rate(plan.expert_slots, experts.count);
  uint64_t bytes = 0;
  for (const ExpertLayer& layer : experts.last(plan.host_weights_layers)) bytes += layer.slot_bytes;
  return lacks * static_cast<double>(as_bytes(experts.used) * bytes);
}

// With as many slots as there is room for beside the rest.
MemoryPlan with_most_slots(const PlanInput& in, const MemoryPlan& least, const PlanBeside& beside) {
  const ExpertsInput& experts = in.weights.experts;
  const auto layers = experts.last(least.host_weights_layers);
  const uint64_t all = std::min(in.vram_free, in.total_free - least.host_total_bytes);
  const uint64_t without = least.device_weights_bytes + least.decode_vram_bytes - least.expert_slab_bytes;
  const int64_t most_slots = in.ring.expert_slots > 0 ? std::min(in.ring.expert_slots, experts.count) : experts.count;
  int64_t low = least.expert_slots, high = most_slots + 1;
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (without + expert_slab_bytes(layers, experts.count, middle) <= all ? low : high) = middle;
  }
  if (low == least.expert_slots) return least;
  std::optional<MemoryPlan> most = beside(with_experts(in, least.host_weights_layers, low));
  return most && most->resident_segments >= least.resident_segments ? *std::move(most) : least;
}

}  // namespace

uint64_t expert_state_bytes(int64_t slots) { return 2 * words_bytes(slots) + 2 * kSlabAlign; }

uint64_t expert_slab_bytes(std::span<const ExpertLayer> layers, int64_t count, int64_t slots) {
  const int64_t rounds = ceil_div(count + 1, slots);
  uint64_t bytes = words_bytes(count + 1) + 2 * words_bytes(rounds * (slots + 1));
  for (const ExpertLayer& layer : layers) {
    if (layer.slot_bytes == 0) continue;
    bytes += as_bytes(slots) * layer.slot_bytes + layer.fixed_bytes + expert_state_bytes(slots);
  }
  return whole_pages(bytes);
}

double expert_hit_rate(int64_t slots, int64_t count) {
  if (slots >= count) return 1;
  if (slots <= 0) return 0;
  constexpr double kHalfOf128 = 0.67, kHalfOf256 = 0.81;
  const double at_128 = -std::log2(kHalfOf128), at_256 = -std::log2(kHalfOf256);
  const double exponent = at_128 + (at_256 - at_128) * (std::log2(static_cast<double>(count)) - 7);
  const double share = static_cast<double>(slots) / static_cast<double>(count);
  return std::pow(share, std::clamp(exponent, at_256, 1.0));
}

std::optional<MemoryPlan> plan_with_experts(const PlanInput& input, const PlanBeside& beside) {
  const ExpertsInput& experts = input.weights.experts;
  if (experts.layers.empty()) return std::nullopt;
  const auto layers = static_cast<int64_t>(experts.layers.size());
  const int64_t asked = input.ring.expert_slots > 0 ? input.ring.expert_slots : experts.count;
  const int64_t least_slots = std::min({experts.count, experts.used, asked});
  const auto least = [&](const PlanInput& in, int64_t leave) { return beside(with_experts(in, leave, least_slots)); };
  PlanInput roomy = input;  // the host may have room for the experts of some layers, and not for those of all
  roomy.host_free = roomy.total_free = UINT64_MAX;
  const std::optional<MemoryPlan> all = least(roomy, layers);
  if (!all) return std::nullopt;
  // Rows that stay where all experts have left stay anyway.
  const auto fits = [&](const PlanInput& in, int64_t leave) {
    std::optional<MemoryPlan> plan = least(in, leave);
    if (plan && plan->resident_segments < all->resident_segments) plan.reset();
    return plan;
  };
  std::optional<MemoryPlan> best;
  const auto consider = [&](int64_t leave) {
    const std::optional<MemoryPlan> plan = fits(input, leave);
    if (!plan) return false;
    MemoryPlan there = with_most_slots(input, *plan, beside);
    if (!best || step_bytes(input, there) <= step_bytes(input, *best)) best = std::move(there);
    return true;
  };
  const int64_t left = input.weights.experts_alone ? input.weights.least_in_host : 0;
  if (left > 0 && !input.weights.all_in_host && consider(left)) return best;  // another placement would load them again
  consider(layers);
  if (input.weights.all_in_host) return best;
  int64_t low = left, high = layers;  // the fewest layers with which it fits the device
  while (low + 1 < high) {
    const int64_t middle = low + (high - low) / 2;
    (fits(roomy, middle) ? high : low) = middle;
  }
  const int64_t step = std::max<int64_t>(1, layers / kTriedPlacements);
  for (int64_t leave = layers; leave > high;) {
    leave = std::max(high, leave - step);
    consider(leave);
  }
  return best;
}

}  // namespace headrace
