// What a run's plan is taken to cost: the steps that it will really take.
#include "runtime/engine/run_plan.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

RunPlan small_model(bool tunes_trees) {
  RunPlan plan{.prompt_tokens = 4096, .context_tokens = 4224, .pass_rows = 64, .tunes_trees = tunes_trees};
  plan.sizes = {.layers = 30,
                .hidden = 576,
                .heads = 9,
                .kv_heads = 3,
                .head_dim = 64,
                .ffn = 1536,
                .vocab = 49152,
                .rows = {.layers = 30, .kv_heads = 3, .head_dim = 64}};
  PlanInput input;
  input.rows = plan.sizes.rows;
  input.prompt_rows = plan.prompt_tokens;
  input.context_rows = plan.context_tokens;
  input.mode = KvMode::kDevice;
  input.vram_free = input.host_free = 64 * kGiB;
  plan.memory = make_plan(input);
  plan.draft = "draft-eagle3";
  return plan;
}

MachineRates rates(bool gpu) {
  return {.gpu = gpu,
          .to_device_gb_per_s = 8,
          .to_host_gb_per_s = 8,
          .weights_gb_per_s = 22,
          .kv_gb_per_s = 8,
          .product_tflop_per_s = 0.15,
          .attention_tflop_per_s = 0.09,
          .queries_tflop_per_s = 0.06};
}

TEST(RunPlan, TunedTreesOfACpuAreSmall) {
  const double fixed = predict(small_model(false), rates(false)).full.ms();
  const double tuned = predict(small_model(true), rates(false)).full.ms();
  EXPECT_LT(tuned, fixed / 4) << "64 nodes and 4";
  EXPECT_GT(tuned, 0);
  // A GPU judges a tree for the price of a row.
  EXPECT_EQ(predict(small_model(true), rates(true)).full.ms(), predict(small_model(false), rates(true)).full.ms());
}

}  // namespace
}  // namespace headrace
