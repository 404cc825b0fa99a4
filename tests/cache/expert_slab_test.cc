// Plans with a slab of experts: what fits, who leaves first, how the room is divided, and what the link is expected to
// carry.
#include "cache/expert_slab.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cache/cost.h"
#include "cache/memory_plan.h"
#include "cache/minimum_budgets.h"

namespace headrace {
namespace {

constexpr uint64_t kExpert = 2 * kMiB, kRest = 16 * kMiB;

// Forty layers of 256 experts, of which a row uses 8, as Qwen3.6-35B-A3B has; ten of them have rows.
PlanInput mixture(uint64_t vram, int64_t prompt = 16384, int64_t answer = 512) {
  PlanInput in;
  in.rows = {.layers = 10, .kv_heads = 2, .head_dim = 256};
  in.prompt_rows = prompt;
  in.context_rows = prompt + answer;
  in.vram_free = vram;
  in.host_free = 64 * kGiB;
  in.decode_work = {.bytes = 70 * kMiB};
  in.prefill_work = {.bytes = 200 * kMiB};
  in.pinned_work_bytes = kMiB;
  const ExpertLayer layer = {.part_bytes = 257 * kExpert, .slot_bytes = kExpert, .fixed_bytes = kExpert};
  in.weights.bytes.assign(40, layer.part_bytes + kRest);
  in.weights.experts = {.layers = std::vector<ExpertLayer>(40, layer), .count = 256, .used = 8};
  return in;
}
uint64_t all_weights() { return uint64_t{40} * (257 * kExpert + kRest); }

TEST(ExpertHitRate, HasThePublishedPointsAndIsWithinItsBounds) {
  EXPECT_NEAR(expert_hit_rate(64, 128), 0.67, 1e-9);
  EXPECT_NEAR(expert_hit_rate(128, 256), 0.81, 1e-9);
  EXPECT_NEAR(expert_hit_rate(256, 512), 0.81, 1e-9);  // no better than any that was published
  for (const int64_t count : {4, 8, 32, 64, 128, 200, 256, 512, 1024}) {
    EXPECT_EQ(expert_hit_rate(0, count), 0);
    EXPECT_EQ(expert_hit_rate(count, count), 1);
    EXPECT_EQ(expert_hit_rate(2 * count, count), 1);
    double before = 0;
    for (int64_t slots = 1; slots < count; ++slots) {
      const double rate = expert_hit_rate(slots, count),
                   share = static_cast<double>(slots) / static_cast<double>(count);
      EXPECT_GT(rate, before);
      EXPECT_GE(rate, share - 1e-12) << "no worse than experts that are used at random";
      EXPECT_LT(rate, 1);
      before = rate;
    }
  }
}

TEST(PlannerOfExperts, LeavesThemWhereTheyFit) {
  const MemoryPlan plan = make_plan(mixture(64 * kGiB));
  EXPECT_EQ(plan.host_weights_layers, 0);
  EXPECT_FALSE(plan.host_experts_alone);
  EXPECT_EQ(plan.expert_slots, 0);
  EXPECT_EQ(plan.device_weights_bytes, all_weights());
  PlanInput least = mixture(plan.all_vram_bytes());
  EXPECT_EQ(make_plan(least).host_weights_layers, 0);
  least.vram_free -= kPageBytes;
  const MemoryPlan left = make_plan(least);
  EXPECT_TRUE(left.host_experts_alone);
  EXPECT_EQ(left.resident_segments, left.segments) << "before rows";
}

// In every budget: what is planned fits, one slot more does not, and the rest of the layers stays.
TEST(PlannerOfExperts, FillsWhatIsFree) {
  double before = 1e300;
  for (uint64_t vram = 4 * kGiB; vram <= 20 * kGiB; vram += 900 * kMiB) {
    const PlanInput in = mixture(vram);
    const MemoryPlan plan = make_plan(in);
    ASSERT_TRUE(plan.host_experts_alone) << vram;
    EXPECT_LE(plan.all_vram_bytes(), vram);
    EXPECT_GE(plan.expert_slots, 8);
    EXPECT_LE(plan.expert_slots, 256);
    const auto layers = static_cast<uint64_t>(plan.host_weights_layers);
    EXPECT_EQ(plan.host_weights_bytes, layers * 257 * kExpert);
    EXPECT_EQ(plan.device_weights_bytes, all_weights() - plan.host_weights_bytes);
    EXPECT_GE(plan.host_total_bytes, plan.host_weights_bytes);
    if (plan.expert_slots < 256) {
      const uint64_t more =
          expert_slab_bytes(in.weights.experts.last(plan.host_weights_layers), 256, plan.expert_slots + 1);
      EXPECT_GT(plan.device_weights_bytes + plan.decode_vram_bytes - plan.expert_slab_bytes + more, vram) << vram;
    }
    // More room never makes the link carry more in a step.
    const double bytes = static_cast<double>(layers) * (1 - expert_hit_rate(plan.expert_slots, 256));
    EXPECT_LE(bytes, before * 1.001) << vram;
    before = bytes;
    EXPECT_NE(plan.to_string().find("slab of experts"), std::string::npos) << plan.to_string();
  }
}

// A slab's first experts are used most, so all layers have one, and later runs find it whatever the first answer is.
TEST(PlannerOfExperts, DividesTheRoomAmongAllLayersWhateverTheAnswerIs) {
  const MemoryPlan shorter = make_plan(mixture(14 * kGiB, 16384, 8)),
                   longer = make_plan(mixture(14 * kGiB, 16384, 8192));
  ASSERT_TRUE(shorter.host_experts_alone && longer.host_experts_alone);
  EXPECT_EQ(shorter.host_weights_layers, 40);
  EXPECT_EQ(longer.host_weights_layers, 40);
}

// Prefill's ring and the slabs have one memory after the other.
TEST(PlannerOfExperts, PrefillHasTheSlabsMemory) {
  PlanInput in = mixture(14 * kGiB, 16384, 8192);
  const MemoryPlan plan = make_plan(in);
  EXPECT_EQ(plan.host_weights_layers, 40);
  in.prefill_work.bytes += plan.expert_slab_bytes - plan.weights_ring_bytes() - kGiB;
  EXPECT_EQ(make_plan(in).expert_slots, plan.expert_slots);
}

// Another placement would load the weights again.
TEST(PlannerOfExperts, KeepsThePlacementThatIsThere) {
  for (const int64_t layers : {25, 40}) {
    PlanInput in = mixture(14 * kGiB, 16384, 8192);
    in.weights.least_in_host = layers;
    in.weights.experts_alone = true;
    EXPECT_EQ(make_plan(in).host_weights_layers, layers);
    in.vram_free = 64 * kGiB;
    EXPECT_EQ(make_plan(in).host_weights_layers, layers);
    EXPECT_EQ(make_plan(in).expert_slots, 256);
    in.vram_free = 5 * kGiB;
    EXPECT_EQ(make_plan(in).host_weights_layers, 40);
    EXPECT_TRUE(make_plan(in).host_experts_alone);
  }
  PlanInput whole = mixture(14 * kGiB);
  whole.weights.least_in_host = 30;
  EXPECT_FALSE(make_plan(whole).host_experts_alone);
}

TEST(PlannerOfExperts, WholeLayersLeaveWhereTheRestHasNoRoom) {
  const MinimumBudgets least = minimum_budgets(mixture(kGiB));
  PlanInput in = mixture(least.vram_bytes);
  const MemoryPlan plan = make_plan(in);
  EXPECT_FALSE(plan.host_experts_alone);
  EXPECT_EQ(plan.host_weights_layers, 40);
  in.vram_free -= kPageBytes;
  EXPECT_FALSE(try_plan(in));
}

// Fewer layers have slabs, down to the fewest with which the device has room, before whole layers leave.
TEST(PlannerOfExperts, AHostWithLittleRoomHasTheExpertsOfFewerLayers) {
  PlanInput in = mixture(14 * kGiB, 16384, 8192);
  EXPECT_EQ(make_plan(in).host_weights_layers, 40);
  for (const uint64_t host : {18 * kGiB, 14 * kGiB, 12 * kGiB}) {
    in.host_free = host;
    const MemoryPlan plan = make_plan(in);
    EXPECT_TRUE(plan.host_experts_alone) << host;
    EXPECT_LT(plan.host_weights_layers, 40) << host;
    EXPECT_LE(plan.host_total_bytes, host);
    EXPECT_LE(plan.all_vram_bytes(), in.vram_free);
  }
}

TEST(PlannerOfExperts, HostMeansAllExperts) {
  PlanInput in = mixture(64 * kGiB);
  in.weights.all_in_host = true;
  const MemoryPlan plan = make_plan(in);
  EXPECT_TRUE(plan.host_experts_alone);
  EXPECT_EQ(plan.host_weights_layers, 40);
  EXPECT_EQ(plan.expert_slots, 256);
}

TEST(PlannerOfExperts, TakesNoMoreSlotsThanAreAskedFor) {
  PlanInput in = mixture(14 * kGiB);
  for (const int64_t slots : {1, 3, 20}) {
    in.ring.expert_slots = slots;
    EXPECT_EQ(make_plan(in).expert_slots, slots);
  }
}

// A step waits for the experts that it lacks; one that uses more than there are slots lacks the others, too.
TEST(CostOfExperts, CountsWhatASlabLacks) {
  ModelSizes model{
      .layers = 40, .hidden = 2048, .heads = 16, .kv_heads = 2, .head_dim = 256, .ffn = 512, .vocab = 1000};
  model.experts = {.count = 256, .used = 8, .ffn = 512, .stored_bytes = 40 * 256 * kExpert};
  model.rows = mixture(0).rows;
  CostInput in{.model = model, .plan = make_plan(mixture(14 * kGiB)), .rates = {}};
  in.rates = {.gpu = true,
              .to_device_gb_per_s = 25,
              .to_host_gb_per_s = 25,
              .weights_gb_per_s = 900,
              .kv_gb_per_s = 900,
              .product_tflop_per_s = 200,
              .attention_tflop_per_s = 100,
              .queries_tflop_per_s = 100};
  in.plan.host_weights_layers = 40;
  in.plan.host_weights_bytes = 40 * 256 * kExpert;
  const auto lacks = [&](int64_t slots, int64_t rows) {
    in.plan.expert_slots = slots;
    const PassCost cost = step_cost(in, {.committed = 16384, .queries = rows});
    EXPECT_NEAR(cost.fetch_ms, static_cast<double>(cost.streamed_weight_bytes) / 25e6 / 0.992, 0.01);
    EXPECT_GE(cost.ms(), cost.device_ms + cost.fetch_ms);
    EXPECT_GE(cost.link_bytes, cost.streamed_weight_bytes);
    return static_cast<double>(cost.streamed_weight_bytes) / static_cast<double>(40 * kExpert);  // experts a layer
  };
  EXPECT_NEAR(lacks(128, 1), 0.19 * 8, 0.01);
  EXPECT_EQ(lacks(256, 1), 0);
  EXPECT_GT(lacks(64, 1), lacks(128, 1));
  EXPECT_GT(lacks(128, 64), lacks(128, 1));
  const double all = 256 * (1 - std::pow(1 - 8.0 / 256, 64));
  EXPECT_NEAR(lacks(8, 64), all - 8, 0.01);
}

}  // namespace
}  // namespace headrace
