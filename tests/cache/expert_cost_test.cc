// What a step reads of experts.
#include <gtest/gtest.h>

#include <utility>

#include "cache/cost.h"
#include "tests/support/plan_input.h"

namespace headrace {
namespace {

constexpr uint64_t kExpertBytes = 48 * 128 * uint64_t{3 * 768 * 2048} * 144 / 256;

// Qwen3-30B-A3B, whose experts are in Q4_K and the rest in bf16.
ModelSizes qwen3_30b() {
  return {
      .layers = 48,
      .hidden = 2048,
      .heads = 32,
      .kv_heads = 4,
      .head_dim = 128,
      .vocab = 151936,
      .qk_norm = true,
      .rows = {.layers = 48, .kv_heads = 4, .head_dim = 128},
      .experts = {
          .count = 128, .used = 8, .ffn = 768, .stored_bytes = kExpertBytes, .quantised = {{"Q4_K", kExpertBytes}}}};
}

MachineRates rates() {
  return {.gpu = true,
          .to_device_gb_per_s = 55,
          .to_host_gb_per_s = 55,
          .weights_gb_per_s = 1000,
          .kv_gb_per_s = 1000,
          .product_tflop_per_s = 160,
          .attention_tflop_per_s = 80,
          .queries_tflop_per_s = 80};
}

TEST(ExpertCost, RowsReadTheExpertsThatTheyAreExpectedToChoose) {
  const ExpertSizes experts = qwen3_30b().experts;
  for (const auto& [rows, distinct] :
       {std::pair<int64_t, double>{1, 8}, {3, 22.5}, {8, 51.6}, {16, 82.4}, {32, 111.8}, {64, 125.9}})
    EXPECT_NEAR(experts.read_share(rows) * 128, distinct, 0.1) << rows;
  EXPECT_EQ(ExpertSizes{}.read_share(64), 0);
}

TEST(ExpertCost, AStepOfOneTokenReadsAFewOfThem) {
  const ModelSizes sizes = qwen3_30b();
  EXPECT_EQ(sizes.weights() - sizes.shared_weights(), 48 * int64_t{8 * 3 * 768 * 2048});
  // Attention, routers and head.
  EXPECT_NEAR(static_cast<double>(sizes.shared_weights() + sizes.head_weights()), 0.906e9 + 0.0126e9 + 0.311e9, 2e6);
  const PlanInput in = testing::plan_input(sizes.rows, {65536, 65536 + 256, KvMode::kDevice});
  const CostInput cost = {.model = sizes, .plan = make_plan(in), .rates = rates()};
  const PassCost one = step_cost(cost, {.committed = 65536}),
                 tree = step_cost(cost, {.committed = 65536, .queries = 64});
  const uint64_t shared = 2 * static_cast<uint64_t>(sizes.shared_weights() + sizes.head_weights());
  EXPECT_NEAR(static_cast<double>(one.weight_bytes - shared), static_cast<double>(kExpertBytes) / 16, 1);
  EXPECT_NEAR(static_cast<double>(tree.weight_bytes - shared), static_cast<double>(kExpertBytes) * 0.984, 1e7);
  EXPECT_GT(tree.device_ms - one.device_ms, static_cast<double>(kExpertBytes) * 0.9 / 1000 * 1e-6);
  EXPECT_GT(prefill_cost(cost, 65536).weight_bytes, kExpertBytes);
}

// Qwen3.6-35B-A3B: recurrent layers have experts, too, and all have a shared one, which `ffn` is the width of.
TEST(ExpertCost, RecurrentLayersHaveExperts) {
  constexpr int64_t kLayers = 40, kExpert = 3 * 512 * 2048;
  ModelSizes sizes = {.layers = kLayers,
                      .hidden = 2048,
                      .heads = 16,
                      .kv_heads = 2,
                      .head_dim = 256,
                      .ffn = 512,
                      .vocab = 248320,
                      .gated = true,
                      .rows = {.layers = 10, .kv_heads = 2, .head_dim = 256},
                      .recurrent = {.layers = 30, .k_heads = 16, .v_heads = 32, .k_dim = 128, .v_dim = 128}};
  const PlanInput in = testing::plan_input(sizes.rows, {16384, 16384 + 256, KvMode::kDevice});
  CostInput cost = {.model = sizes, .plan = make_plan(in), .rates = rates()};
  const double without = step_cost(cost, {.committed = 16384}).device_ms;
  cost.model.experts = {
      .count = 256, .used = 8, .ffn = 512, .stored_bytes = static_cast<uint64_t>(kLayers * 256 * kExpert * 2)};
  EXPECT_EQ(cost.model.weights() - sizes.weights(), kLayers * (8 * kExpert + 256 * 2048));  // and the routers
  const double bytes_ms = gb_ms(2.0 * kLayers * (8 * kExpert + 256 * 2048), cost.rates.weights_gb_per_s);
  const double kernels_ms = step_cost(cost, {.committed = 16384}).device_ms - without - bytes_ms;
  EXPECT_GT(kernels_ms, kLayers * 5e-3);
  EXPECT_LT(kernels_ms, kLayers * 15e-3);
}

}  // namespace
}  // namespace headrace
