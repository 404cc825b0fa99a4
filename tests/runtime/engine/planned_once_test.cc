// A run is planned once: the plan that was checked is the one that is printed and carried out; and what would fit is
// searched for only for an error that is shown. The linker passes every call of try_plan() and minimum_budgets()
// through functions here (-Wl,--wrap), which count them.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "cache/minimum_budgets.h"
#include "offload/device/dry_run_device.h"
#include "runtime/commands/shared_rows.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/run_setup.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {

std::optional<MemoryPlan> real_try_plan(const PlanInput& input) __asm__(
    "__real__ZN8headrace8try_planERKNS_9PlanInputE");
std::optional<MemoryPlan> counted_try_plan(const PlanInput& input) __asm__(
    "__wrap__ZN8headrace8try_planERKNS_9PlanInputE");
MinimumBudgets real_minimum_budgets(const PlanInput& input) __asm__(
    "__real__ZN8headrace15minimum_budgetsERKNS_9PlanInputE");
MinimumBudgets counted_minimum_budgets(const PlanInput& input) __asm__(
    "__wrap__ZN8headrace15minimum_budgetsERKNS_9PlanInputE");

namespace {

int plans = 0;     // that were asked for, by searches, too
int searches = 0;  // for what would fit

void count_anew() { plans = searches = 0; }

EngineOptions tiny() {
  EngineOptions options;
  options.model = testing::tiny_model("llama31");
  options.device = {.choice = DeviceChoice::kCpu, .host_mem_bytes = 256 * kMiB, .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  return options;
}

int plans_of_a_run(const EngineOptions& options, const GenerateOptions& run) {
  Engine engine(options);
  count_anew();
  engine.generate(testing::made_up_ids(1100, 512), run, nullptr);
  EXPECT_EQ(searches, 0);
  return plans;
}

TEST(PlannedOnce, PlainDecoding) {
  for (const KvMode kv : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
    EXPECT_EQ(plans_of_a_run(tiny(), {.max_tokens = 2, .kv = kv, .ignore_eos = true}), 1);
  }
}

TEST(PlannedOnce, WithADraftOrASavedPrefix) {
  EngineOptions options = tiny();
  options.draft.type = SpecType::kNgram;
  EXPECT_EQ(plans_of_a_run(options, {.max_tokens = 2, .ignore_eos = true}), 1);
  const TemporaryFolder folder;
  options = tiny();
  options.prefix_cache.folder = folder / "cache";
  EXPECT_EQ(plans_of_a_run(options, {.max_tokens = 2, .ignore_eos = true}), 1);  // saves
  EXPECT_EQ(plans_of_a_run(options, {.max_tokens = 2, .ignore_eos = true}), 1);  // hits
}

// How many pending tokens a refresh judges depends on whether it streams, so that the planner is asked for the small
// passes first; a run whose passes stream is planned for the large ones then, if they fit.
TEST(PlannedOnce, OrOnceMoreWhereTheTreeDependsOnThePlan) {
  EngineOptions options = tiny();
  options.verify = {.mode = VerifyMode::kLossless, .budget = 64};
  EXPECT_EQ(plans_of_a_run(options, {.max_tokens = 2, .kv = KvMode::kDevice, .ignore_eos = true}), 1);
  EXPECT_EQ(plans_of_a_run(options, {.max_tokens = 2, .kv = KvMode::kHost, .ignore_eos = true}), 2);
}

TEST(PlannedOnce, APlanThatIsPrinted) {
  const Engine engine(tiny());
  count_anew();
  engine.plan(1100, {.max_tokens = 2});
  EXPECT_EQ(plans, 1);
}

// ---- Where something does not fit -----------------------------------------------------------------------------------

// Counts the drafts that it starts.
class CountingDraftModel final : public DraftModel {
 public:
  explicit CountingDraftModel(std::unique_ptr<DraftModel> real) : real_(std::move(real)) {}
  bool load(Progress* progress, const std::atomic<bool>* interrupt) override {
    return real_->load(progress, interrupt);
  }
  bool loaded() const override { return real_->loaded(); }
  uint64_t weights_bytes() const override { return real_->weights_bytes(); }
  SpecType type() const override { return real_->type(); }
  TreeLimits tree() const override { return real_->tree(); }
  bool tunes_trees() const override { return real_->tunes_trees(); }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    ++started;
    return real_->start(run);
  }
  int started = 0;

 private:
  const std::unique_ptr<DraftModel> real_;
};

// A quantised model of 8B and a look-up on a GPU of paper.
class OnAFullCard : public ::testing::Test {
 protected:
  static constexpr int64_t kPrompt = 61440;
  GenerateOptions run(VerifyMode mode) const {
    GenerateOptions options{.max_tokens = 256, .kv = KvMode::kHost};
    options.verify = VerifyOptions{.mode = mode};
    return options;
  }
  // With so much memory left. None: it does not fit.
  std::optional<SessionPlan> plan_with(uint64_t bytes, const GenerateOptions& options, RunSetup* setup) {
    const MemoryBudget::Reservation others = device_->vram().reserve(device_->vram().free_bytes() - bytes, "others");
    *setup = resolve_options(context_, kPrompt, options);
    draft_.started = 0;
    count_anew();
    return try_finalize(context_, options, setup);
  }
  // The least memory with which it fits.
  uint64_t least(const GenerateOptions& options) {
    uint64_t low = 0, high = device_->vram().free_bytes() / kPageBytes;
    while (low + 1 < high) {
      RunSetup setup;
      const uint64_t middle = (low + high) / 2;
      (plan_with(middle * kPageBytes, options, &setup) ? high : low) = middle;
    }
    return high * kPageBytes;
  }

  const std::unique_ptr<Device> device_ =
      open_dry_run_device({.name = "paper", .vram_bytes = 64 * kGiB, .host_bytes = 64 * kGiB});
  const std::unique_ptr<Checkpoint> checkpoint_ =
      make_random_checkpoint("llama-3.1-8b", find_shape("llama-3.1-8b").config, 0, find_weight_mixture("q4_k_m"));
  const Weights weights_ =
      Weights::reserve(*checkpoint_, *device_, {checkpoint_->natural_dtype(), WeightPolicy::kKeep});
  CountingDraftModel draft_{open_draft({.type = SpecType::kNgram}, *device_, checkpoint_->config(), weights_)};
  const std::unique_ptr<Stream> compute_ = device_->make_stream("compute", StreamRole::kCompute);
  const EngineOptions options_ = [] {
    EngineOptions options;
    options.host_states = options.host_embedding = false;  // a lean prefill is what is left
    return options;
  }();
  const RunContext context_{options_, *device_, *compute_, checkpoint_->config(), weights_, &draft_};
};

// Everything is tried with a usual prefill, then again with a lean one, without a search. Of the kinds of partial KV
// all are planned, for their predicted speed. Tries share drafts: one for each width of passes.
TEST_F(OnAFullCard, ALeanPrefillCostsNoSearchAndNoFurtherDraft) {
  for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kLossless}) {
    const GenerateOptions options = run(mode);
    RunSetup setup;
    const std::optional<SessionPlan> plan = plan_with(least(options), options, &setup);
    ASSERT_TRUE(plan);
    EXPECT_TRUE(plan->memory.lean_prefill);
    EXPECT_EQ(searches, 0);
    EXPECT_LE(plans, mode == VerifyMode::kFull ? 2 : 16);
    EXPECT_LE(draft_.started, mode == VerifyMode::kFull ? 1 : 3);
    EXPECT_EQ(setup.session.draft, setup.draft.get());
    EXPECT_NE(setup.draft, nullptr);
    EXPECT_EQ(plan->layout.options().draft, setup.draft.get());
  }
}

TEST_F(OnAFullCard, WhatWouldFitIsSearchedForOnceForAnError) {
  const GenerateOptions options = run(VerifyMode::kFull);
  const uint64_t bytes = least(options) - kPageBytes;
  RunSetup setup;
  EXPECT_FALSE(plan_with(bytes, options, &setup));
  EXPECT_EQ(searches, 0);
  EXPECT_EQ(setup.session.draft, nullptr);
  const MemoryBudget::Reservation others = device_->vram().reserve(device_->vram().free_bytes() - bytes, "others");
  EXPECT_THROW(finalize(context_, options, &setup), DoesNotFit);
  EXPECT_EQ(searches, 1);
}

// A caller with an alternative pays for none: rows that are kept for later prompts, a saved prefix.
TEST(PlannedOnce, AnAlternativeCostsNoSearch) {
  GenerateOptions plain{.max_tokens = 2, .ignore_eos = true};
  std::unique_ptr<Engine> with_room;  // for a run alone
  EngineOptions options = tiny();
  for (options.device.host_mem_bytes = kMiB; with_room == nullptr; options.device.host_mem_bytes += 128 * kKiB) {
    try {
      auto opened = std::make_unique<Engine>(options);
      if (opened->try_plan(1100, plain)) with_room = std::move(opened);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::kDoesNotFit);  // of the weights
    }
  }
  Engine& engine = *with_room;
  const std::vector<int32_t> prompt = testing::made_up_ids(1100, 512);
  GenerateOptions run{.max_tokens = 2, .keep = KeepRows::kPrompt, .keep_tokens = 2040, .ignore_eos = true};
  count_anew();
  ASSERT_FALSE(engine.try_generate(prompt, run, nullptr)) << "it is to be too much";
  run.keep = KeepRows::kNone;
  EXPECT_EQ(generate_sharing(engine, prompt, run, 2040, nullptr).token_ids.size(), 2u);
  EXPECT_EQ(searches, 0);
}

}  // namespace

std::optional<MemoryPlan> counted_try_plan(const PlanInput& input) {
  ++plans;
  return real_try_plan(input);
}

MinimumBudgets counted_minimum_budgets(const PlanInput& input) {
  ++searches;
  return real_minimum_budgets(input);
}

}  // namespace headrace
