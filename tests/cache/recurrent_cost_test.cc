// What recurrent layers are predicted to take is what an H200 took, and what they add to a step and a prompt.
#include "cache/recurrent_cost.h"

#include <gtest/gtest.h>

#include "cache/cost.h"
#include "cache/draft_cost.h"
#include "tests/support/plan_input.h"

namespace headrace {
namespace {

constexpr RecurrentSizes kSizes = {.layers = 48, .k_heads = 16, .v_heads = 48, .k_dim = 128, .v_dim = 128};

MachineRates rates_of_h200() {
  return {.gpu = true,
          .to_device_gb_per_s = 55.13,
          .to_host_gb_per_s = 55.23,
          .weights_gb_per_s = 3880,
          .kv_gb_per_s = 4170,
          .product_tflop_per_s = 790,
          .attention_tflop_per_s = 350,
          .queries_tflop_per_s = 284};
}

// Qwen3.6-27B in bf16.
ModelSizes qwen_27b() {
  return {.layers = 64,
          .hidden = 5120,
          .heads = 24,
          .kv_heads = 4,
          .head_dim = 256,
          .ffn = 17408,
          .vocab = 248320,
          .qk_norm = true,
          .gated = true,
          .rows = {.layers = 16, .kv_heads = 4, .head_dim = 256},
          .recurrent = kSizes};
}

CostInput hybrid(int64_t prompt, KvMode mode) {
  const PlanInput in = testing::plan_input(qwen_27b().rows, {prompt, prompt + 33, mode});
  return {.model = qwen_27b(), .plan = make_plan(in), .rates = rates_of_h200()};
}

double us_of_layer(double ms) { return ms * 1e3 / static_cast<double>(kSizes.layers); }

// kernel_bench_h200_recurrence.jsonl: us. In the binary trees every node but two replays its path.
TEST(RecurrentCost, IsWhatAnH200Took) {
  struct Pass {
    RecurrentRows rows;
    double around, recurrence, commit;
  };
  for (const Pass& p : {Pass{{1, 0}, 5.381 + 5.232, 5.557, 90.32}, Pass{{4, 0}, 5.422 + 5.314, 8.91, 137.2},
                        Pass{{16, 0}, 11.83 + 5.655, 25.06, 272.4}, Pass{{16, 37}, 11.83 + 5.655, 39.93, 272.4},
                        Pass{{64, 0}, 11.96 + 5.373, 89.33, 814.4}, Pass{{64, 263}, 11.96 + 5.373, 194.4, 814.4}}) {
    const double recurrence = recurrence_ms(kSizes, p.rows, rates_of_h200());
    const double around = recurrent_pass_ms(kSizes, p.rows, rates_of_h200()) - recurrence;
    EXPECT_NEAR(us_of_layer(recurrence) / p.recurrence, 1, 0.05) << p.rows.rows;
    EXPECT_NEAR(us_of_layer(around) / p.around, 1, 0.13) << p.rows.rows;
    EXPECT_NEAR(recurrent_commit_ms(kSizes, p.rows.rows, rates_of_h200()) * 1e3 / p.commit, 1, 0.05) << p.rows.rows;
  }
  EXPECT_NEAR(us_of_layer(recurrent_prefill_ms(kSizes, 2048, 2048, rates_of_h200())) / (79.1 + 35.65 + 354.6), 1, 0.05);
}

TEST(RecurrentCost, NothingIsOfAModelWithoutSuchLayers) {
  const RecurrentSizes none;
  EXPECT_EQ(recurrent_step_ms(none, {.mode = StepMode::kRefresh, .queries = 64}, rates_of_h200()), 0);
  EXPECT_EQ(recurrent_prefill_ms(none, 4096, 2048, rates_of_h200()), 0);
  EXPECT_EQ(none.state_bytes(), 0u);
}

// A pass reads the states at least at the rate of memory; each more token of it, and each token that is replayed,
// costs.
TEST(RecurrentCost, GrowsWithTokensAndWithSlowMemory) {
  const double one = recurrence_ms(kSizes, {.rows = 1}, rates_of_h200()),
               four = recurrence_ms(kSizes, {.rows = 4}, rates_of_h200());
  EXPECT_NEAR(us_of_layer(four - one), 3.5 + 4 * 1.34 - 5.5, 0.01);
  EXPECT_GT(recurrence_ms(kSizes, {.rows = 4, .replayed = 3}, rates_of_h200()), four);
  MachineRates slow = rates_of_h200();
  slow.kv_gb_per_s = 200;
  EXPECT_DOUBLE_EQ(recurrence_ms(kSizes, {.rows = 1}, slow), 144.0 * 1024 * 1024 / 200e6);
  MachineRates cpu = slow;
  cpu.gpu = false, cpu.queries_tflop_per_s = 0.04, cpu.attention_tflop_per_s = 0.04, cpu.kv_gb_per_s = 3.4;
  cpu.weights_gb_per_s = 8;
  EXPECT_GT(recurrence_ms(kSizes, {.rows = 64}, cpu), 10 * recurrence_ms(kSizes, {.rows = 1}, cpu));
  EXPECT_GT(recurrent_prefill_ms(kSizes, 2048, 256, cpu), recurrent_prefill_ms(kSizes, 1024, 256, cpu));
}

// Of a hybrid, attention and the link have the layers with rows alone.
TEST(RecurrentCost, OfAHybridStepHasTheRowsOfAQuarterOfItsLayers) {
  const CostInput host = hybrid(61440, KvMode::kHost);
  const PassCost step = step_cost(host, {.committed = 61440});
  EXPECT_EQ(step.link_bytes, 61440u * 64 * kKiB);
  EXPECT_EQ(step.kv_bytes, step.link_bytes);
  EXPECT_EQ(step.state_bytes, 144u * kMiB);
  EXPECT_EQ(qwen_27b().weights() + 2 * qwen_27b().head_weights(), 26895998464 - 5120 * 129 - 16 * 512 - 48 * 41184);
  CostInput plain = host;
  plain.model.recurrent = {};
  plain.model.layers = 16;
  const PassCost without = step_cost(plain, {.committed = 61440});
  EXPECT_EQ(without.link_bytes, step.link_bytes);
  EXPECT_GT(step.device_ms, without.device_ms + recurrent_step_ms(kSizes, {}, rates_of_h200()));
  const PassShape refresh{.mode = StepMode::kRefresh, .committed = 61440, .queries = 100, .accepted = 80};
  EXPECT_GT(recurrent_step_ms(kSizes, refresh, rates_of_h200()), 48 * 100 * 1.34e-3);
  // Prefill's chunks are beside the products.
  const double chunks = recurrent_prefill_ms(kSizes, 61440, 2048, rates_of_h200());
  EXPECT_NEAR(chunks, 30 * 48 * 0.469, 0.05 * chunks);
  const PassCost prefill = prefill_cost(hybrid(61440, KvMode::kDevice), 61440);
  EXPECT_GT(prefill.device_ms, chunks + 2.0 * 61440 * static_cast<double>(qwen_27b().weights()) / 790e9);
}

// A level of an MTP block reads the block, the head and its rows; its rows of a prompt are two products a token.
TEST(RecurrentCost, OfADraftIsThatOfItsBytes) {
  const DraftPass plain = {.bytes = 3'880'000'000};
  EXPECT_NEAR(draft_ms(plain, 1, rates_of_h200()), 1.0885, 1e-6);
  EXPECT_NEAR(draft_ms(plain, 3, rates_of_h200()), 3 * 1.0885, 1e-6);
  DraftPass rows = plain;
  rows.rows_bytes = 4'170'000'000;
  EXPECT_NEAR(draft_ms(rows, 1, rates_of_h200()) - draft_ms(plain, 1, rates_of_h200()), 1, 1e-6);
  const DraftPass quantised = {.bytes = plain.bytes, .quantised = {{"Q4_K", plain.bytes}}};
  EXPECT_GT(draft_ms(quantised, 1, rates_of_h200()), draft_ms(plain, 1, rates_of_h200())) << "for as many bytes";
  EXPECT_EQ(draft_prefill_ms(plain, 1000, rates_of_h200()), 0);
  EXPECT_NEAR(draft_prefill_ms({.prompt_weights = 79'000'000}, 1000, rates_of_h200()), 0.2, 1e-9);
}

}  // namespace
}  // namespace headrace
