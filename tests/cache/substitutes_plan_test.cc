// Substitutes of weights in the plan of a run.
#include <gtest/gtest.h>

#include "cache/cost.h"
#include "cache/minimum_budgets.h"
#include "tests/support/plan_input.h"

namespace headrace {
namespace {

constexpr uint64_t kExactLayer = 416 * kMiB, kSubstitute = 120 * kMiB;

// Llama-3.1-8B in bf16, whose layers have substitutes; partial steps read the full KV itself or an int8 copy.
PlanInput with_substitutes(uint64_t vram, bool exact) {
  PlanInput in = testing::plan_input(
      {.layers = 32, .kv_heads = 8, .head_dim = 128, .k_type = DType::kBF16, .v_type = DType::kBF16},
      {.prompt = 8192, .context = 8448, .mode = KvMode::kAuto, .vram_free = vram});
  in.pass_rows = 64;
  in.prefill_work.bytes = in.decode_work.bytes = 256 * kMiB;
  in.weights.bytes.assign(32, kExactLayer);
  in.weights.substitutes.assign(32, kSubstitute);
  if (exact) in.partial.exact = true;
  if (!exact) in.partial.copy = DType::kInt8;
  return in;
}

// As many layers stay as fit beside the substitutes of the others; all of it is counted on the device.
TEST(PlannerOfSubstitutes, CountsThemOnTheDevice) {
  for (const bool exact : {true, false}) {
    int64_t before = 33;
    for (uint64_t vram = 6 * kGiB; vram <= 15 * kGiB; vram += kGiB) {
      const PlanInput in = with_substitutes(vram, exact);
      const MemoryPlan plan = make_plan(in);
      EXPECT_EQ(plan.substitute_bytes, static_cast<uint64_t>(plan.host_weights_layers) * kSubstitute);
      EXPECT_EQ(plan.all_vram_bytes(), plan.vram_bytes + plan.device_weights_bytes + plan.substitute_bytes);
      EXPECT_LE(plan.all_vram_bytes(), vram);
      EXPECT_LE(plan.host_weights_layers, before);
      before = plan.host_weights_layers;
      if (plan.host_weights_layers > 3) {
        EXPECT_GT(plan.all_vram_bytes() + kExactLayer - kSubstitute, vram) << "one layer more could stay";
      }
      EXPECT_TRUE(!exact || plan.ring_slots == 0) << "partial steps read rows that are not on the device";
      EXPECT_EQ(plan.to_string().find("substitutes") != std::string::npos, plan.substitutes());
    }
    EXPECT_LT(before, 32);
    PlanInput plain = with_substitutes(8 * kGiB, exact);
    const int64_t with = make_plan(plain).host_weights_layers;
    plain.weights.substitutes.clear();
    EXPECT_LT(make_plan(plain).host_weights_layers, with);
    EXPECT_FALSE(make_plan(plain).substitutes());
  }
}

// What is offered fits, and a page less does not.
TEST(PlannerOfSubstitutes, SaysWhatWouldFit) {
  for (const bool exact : {true, false}) {
    PlanInput in = with_substitutes(3 * kGiB, exact);
    ASSERT_FALSE(try_plan(in));
    try {
      make_plan(in);
    } catch (const DoesNotFit& refused) {
      EXPECT_NE(refused.info().hint.find("--weights-substitute none"), std::string::npos) << refused.what();
      EXPECT_EQ(refused.info().hint.find("--verify full") == std::string::npos, exact) << refused.what();
    }
    const MinimumBudgets minimum = minimum_budgets(in);
    ASSERT_GT(minimum.vram_bytes, 32 * kSubstitute + 2 * kExactLayer);
    in.vram_free = minimum.vram_bytes;
    EXPECT_EQ(make_plan(in).host_weights_layers, 32);
    in.vram_free -= kPageBytes;
    EXPECT_FALSE(try_plan(in));
    if (minimum.context_rows == 0) continue;
    in.vram_free = 3 * kGiB;
    in.prompt_rows = std::max<int64_t>(1, minimum.context_rows - 256);
    in.context_rows = minimum.context_rows;
    EXPECT_TRUE(try_plan(in)) << minimum.context_rows;
  }
}

// Partial steps that read the full KV read its rows in their own types.
TEST(Cost, OfPartialStepsOnTheFullKv) {
  CostInput in;
  in.model = testing::llama_8b_sizes();
  in.model.rows = with_substitutes(kGiB, true).rows;
  in.plan = make_plan(with_substitutes(32 * kGiB, true));
  in.rates = {.gpu = true,
              .to_device_gb_per_s = 25,
              .to_host_gb_per_s = 25,
              .weights_gb_per_s = 900,
              .kv_gb_per_s = 900,
              .product_tflop_per_s = 150,
              .attention_tflop_per_s = 120,
              .queries_tflop_per_s = 120};
  const PassCost full = step_cost(in, {.committed = 8192});
  const PassCost partial =
      step_cost(in, {.mode = StepMode::kPartial, .committed = 8192, .partial = PartialShape{.exact = true}});
  EXPECT_EQ(partial.kv_bytes, full.kv_bytes);
  EXPECT_EQ(partial.device_ms, full.device_ms);
}

}  // namespace
}  // namespace headrace
