// What a run's plan is taken to cost: the steps that it will really take.
#include "runtime/engine/run_plan.h"

#include <gtest/gtest.h>

#include "tests/support/plan_input.h"

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
  plan.memory =
      make_plan(testing::plan_input(plan.sizes.rows, {plan.prompt_tokens, plan.context_tokens, KvMode::kDevice}));
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

// A lossless run on a GPU with an int8 copy, whose pending tokens are a tree and whose refreshes stream.
RunPlan lossless_run(const std::string& draft) {
  RunPlan plan = small_model(true);
  plan.memory = make_plan(testing::plan_input(plan.sizes.rows, {plan.prompt_tokens, plan.context_tokens}));
  plan.verify = VerifyMode::kLossless;
  plan.partial.copy = DType::kInt8;
  plan.grow_rows = 8;
  plan.draft = draft;
  plan.draft_pass.bytes = draft.empty() ? 0 : 1 << 20;
  plan.draft_levels = 2;
  return plan;
}

TEST(RunPlan, EstimatesWhatRefreshesConfirm) {
  const std::optional<RefreshEstimate> alone = predict(lossless_run(""), rates(true)).estimate;
  const Prediction drafted = predict(lossless_run("draft-eagle3"), rates(true));
  ASSERT_TRUE(alone.has_value() && drafted.estimate.has_value());
  EXPECT_EQ(alone->tau, 0);
  EXPECT_EQ(drafted.estimate->tau, 1);
  EXPECT_LT(alone->rejected_share, drafted.estimate->rejected_share);
  // Of as many pending tokens as it found best: two a step, and a tree before each step and the refresh.
  const RefreshEstimate& best = *drafted.estimate;
  const double steps = static_cast<double>(best.pending) / 2;
  const double ms = drafted.refresh.ms() + drafted.draft_ms + steps * (drafted.partial.ms() + drafted.draft_ms);
  EXPECT_GT(drafted.draft_ms, 0);
  EXPECT_NEAR(best.tokens_per_s, best.tokens * 1e3 / ms, 1e-6 * best.tokens_per_s);
  EXPECT_GT(best.tokens_per_s, alone->tokens_per_s);
  // What a look-up finds is the text's, and a chain keeps no second choice.
  EXPECT_FALSE(predict(lossless_run("ngram-simple"), rates(true)).estimate.has_value());
  RunPlan tree = lossless_run("draft-eagle3");
  tree.interval = 20;
  RunPlan chain = tree;
  chain.grow_rows = 0;
  EXPECT_LT(predict(chain, rates(true)).estimate->tokens, predict(tree, rates(true)).estimate->tokens);
}

// Recurrent layers compute nodes one after another, so a tuned tree is a chain of three there, and each level of the
// draft costs. Its rows of the prompt are part of prefill.
TEST(RunPlan, TunedTreesOfAHybridAreChains) {
  RunPlan plan = small_model(true);
  plan.sizes.recurrent = {.layers = 10, .k_heads = 4, .v_heads = 8, .k_dim = 64, .v_dim = 64};
  plan.sizes.rows.layers = 20;
  plan.draft = "draft-mtp";
  plan.draft_levels = 7;
  plan.draft_pass = {.bytes = 1 << 24, .prompt_weights = 1 << 20};
  RunPlan fixed = plan, plain = plan;
  fixed.tunes_trees = false;
  plain.draft.clear(), plain.draft_pass = {};
  const Prediction tuned = predict(plan, rates(true)), whole = predict(fixed, rates(true));
  EXPECT_NEAR(tuned.draft_ms / whole.draft_ms, 3.0 / 7, 1e-9);
  EXPECT_GT(whole.full.ms(), tuned.full.ms());
  EXPECT_NEAR(tuned.prefill.ms() - predict(plain, rates(true)).prefill.ms(),
              draft_prefill_ms(plan.draft_pass, plan.prompt_tokens, rates(true)), 1e-6);
}

}  // namespace
}  // namespace headrace
