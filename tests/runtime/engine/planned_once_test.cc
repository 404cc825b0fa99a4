// A run is planned once: the plan that was checked is the one that is printed and carried out. The linker passes every
// call of make_plan() and try_plan() through functions here (-Wl,--wrap), which count them.
#include <gtest/gtest.h>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {

MemoryPlan real_make_plan(const PlanInput& input) __asm__("__real__ZN8headrace9make_planERKNS_9PlanInputE");
MemoryPlan counted_make_plan(const PlanInput& input) __asm__("__wrap__ZN8headrace9make_planERKNS_9PlanInputE");
std::optional<MemoryPlan> real_try_plan(const PlanInput& input) __asm__(
    "__real__ZN8headrace8try_planERKNS_9PlanInputE");
std::optional<MemoryPlan> counted_try_plan(const PlanInput& input) __asm__(
    "__wrap__ZN8headrace8try_planERKNS_9PlanInputE");

namespace {

int planner_calls = 0;  // of make_plan()
int planner_tries = 0;

EngineOptions tiny() {
  EngineOptions options;
  options.model = testing::tiny_model("llama31");
  options.device = {.choice = DeviceChoice::kCpu, .host_mem_bytes = 256 * kMiB, .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  return options;
}

int calls_of_a_run(const EngineOptions& options, const GenerateOptions& run) {
  Engine engine(options);
  planner_calls = planner_tries = 0;
  engine.generate(testing::made_up_ids(1100, 512), run, nullptr);
  return planner_calls;
}

TEST(PlannedOnce, PlainDecoding) {
  for (const KvMode kv : {KvMode::kAuto, KvMode::kDevice, KvMode::kHost}) {
    EXPECT_EQ(calls_of_a_run(tiny(), {.max_tokens = 2, .kv = kv, .ignore_eos = true}), 1);
  }
}

TEST(PlannedOnce, WithADraftOrASavedPrefix) {
  EngineOptions options = tiny();
  options.draft.type = SpecType::kNgram;
  EXPECT_EQ(calls_of_a_run(options, {.max_tokens = 2, .ignore_eos = true}), 1);
  const TemporaryFolder folder;
  options = tiny();
  options.prefix_cache.folder = folder / "cache";
  EXPECT_EQ(calls_of_a_run(options, {.max_tokens = 2, .ignore_eos = true}), 1);  // saves
  EXPECT_EQ(calls_of_a_run(options, {.max_tokens = 2, .ignore_eos = true}), 1);  // hits
}

// How many pending tokens a refresh judges depends on whether it streams, so that the planner is asked for the small
// passes first; a run whose passes stream is planned for the large ones then, if they fit.
TEST(PlannedOnce, OrOnceMoreWhereTheTreeDependsOnThePlan) {
  EngineOptions options = tiny();
  options.verify = {.mode = VerifyMode::kLossless, .budget = 64};
  EXPECT_EQ(calls_of_a_run(options, {.max_tokens = 2, .kv = KvMode::kDevice, .ignore_eos = true}), 1);
  EXPECT_EQ(planner_tries, 0);
  EXPECT_EQ(calls_of_a_run(options, {.max_tokens = 2, .kv = KvMode::kHost, .ignore_eos = true}), 1);
  EXPECT_EQ(planner_tries, 1);
}

TEST(PlannedOnce, APlanThatIsPrinted) {
  const Engine engine(tiny());
  planner_calls = 0;
  engine.plan(1100, {.max_tokens = 2});
  EXPECT_EQ(planner_calls, 1);
}

}  // namespace

MemoryPlan counted_make_plan(const PlanInput& input) {
  ++planner_calls;
  const int tries = planner_tries;
  MemoryPlan plan = real_make_plan(input);
  planner_tries = tries;  // it tries, too, which some compilers let the linker see
  return plan;
}

std::optional<MemoryPlan> counted_try_plan(const PlanInput& input) {
  ++planner_tries;
  return real_try_plan(input);
}

}  // namespace headrace
