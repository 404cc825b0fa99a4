// `--verify approximate`: the text is not the full KV's, but the same command gives the same text. Nothing that is
// measured may decide it, nor whether the prompt's beginning came from a saved prefix.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

constexpr int64_t kMostBeyond = 8;  // levels of a tree
constexpr int64_t kGroup = 512;     // of prefill, so that a GPU's rows are kept in this unit

class ApproximateText : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  ApproximateText() { testing_support::tiny_eagle3_head().write(eagle3_.path()); }

  EngineOptions options(SpecType type) const {
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.device = {.choice = GetParam(), .threads = 2};
    options.prefill_group = kGroup;
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.draft.type = type;
    if (type == SpecType::kEagle3) options.draft.model = eagle3_.path();
    return options;
  }
  static GenerateOptions approximate(uint64_t seed) {
    GenerateOptions run{.max_tokens = 100, .sampling = {.temperature = 1.2f, .seed = seed}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kApproximate, .budget = 64};
    return run;
  }

  const TemporaryFolder eagle3_;
};
INSTANTIATE_TEST_SUITE_P(Devices, ApproximateText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(ApproximateText, DoesNotDependOnWhatStepsCost) {
  Engine engine(options(SpecType::kEagle3));  // --tree auto
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  const auto dear = [](GenerateOptions run) {
    run.step_costs = {.partial_ms = 1e6, .refresh_ms = 1e6};
    return run;
  };
  const auto cheap = [](GenerateOptions run) {
    run.step_costs = {.partial_ms = 1e-6, .refresh_ms = 1e-6};
    return run;
  };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    const GenerateOptions run = approximate(seed);
    const GenerateResult a = engine.generate(prompt, dear(run), nullptr),
                         b = engine.generate(prompt, cheap(run), nullptr);
    EXPECT_EQ(a.token_ids, b.token_ids) << "seed " << seed;
    EXPECT_EQ(a.speculation.steps, b.speculation.steps);
    EXPECT_EQ(a.speculation.proposed, b.speculation.proposed);
    EXPECT_GT(a.speculation.proposed, 0);
    EXPECT_GT(a.speculation.of(StepMode::kPartial).steps, 0);
  }
  // The costs do reach what chooses trees: of a lossless run they are others.
  GenerateOptions run = approximate(1);
  run.verify->mode = VerifyMode::kLossless;
  run.verify->interval = 20;
  const GenerateResult a = engine.generate(prompt, dear(run), nullptr),
                       b = engine.generate(prompt, cheap(run), nullptr);
  EXPECT_EQ(a.token_ids, b.token_ids);
  EXPECT_GT(a.speculation.proposed, b.speculation.proposed);  // by how much depends on what the draft costs here
}

// --max-overturned: what was printed stays, and the rest is plain decoding's. Only counts decide where that begins.
TEST_P(ApproximateText, IsLosslessWhereTooMuchIsOverturned) {
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  for (const SpecType type : {SpecType::kNone, SpecType::kEagle3}) {
    Engine engine(options(type));
    GenerateOptions run = approximate(3);
    run.verify->interval = 10;
    const GenerateResult any = engine.generate(prompt, run, nullptr);
    ASSERT_GT(any.speculation.verify_outcome.rejected, 0) << "another seed: nothing is overturned";
    EXPECT_EQ(any.speculation.verify_outcome.lossless_tokens, 0);
    run.verify->max_overturned = 1;
    EXPECT_EQ(engine.generate(prompt, run, nullptr).token_ids, any.token_ids);
    run.verify->max_overturned = 0;
    const GenerateResult none = engine.generate(prompt, run, nullptr);
    run.step_costs = {.partial_ms = 1e6, .refresh_ms = 1e-6};
    EXPECT_EQ(engine.generate(prompt, run, nullptr).token_ids, none.token_ids);
    ASSERT_EQ(none.token_ids.size(), 100u);
    const int64_t lossless = none.speculation.verify_outcome.lossless_tokens;
    ASSERT_GT(lossless, 0);
    ASSERT_LT(lossless, 100);
    // The first lossless token; a tree's last refresh may have judged tokens beyond the run's end.
    const int64_t first = 100 - lossless + (type == SpecType::kNone ? 0 : kMostBeyond);
    std::vector<int32_t> longer = prompt;
    longer.insert(longer.end(), none.token_ids.begin(), none.token_ids.begin() + first);
    GenerateOptions plain = approximate(3);
    plain.verify = VerifyOptions{.mode = VerifyMode::kFull};
    plain.max_tokens = 100 - first;
    EXPECT_EQ(engine.generate(longer, plain, nullptr).token_ids,
              std::vector<int32_t>(none.token_ids.begin() + first, none.token_ids.end()));
    EXPECT_TRUE(std::equal(none.token_ids.begin(), none.token_ids.end() - lossless, any.token_ids.begin()));
  }
}

// Prompts that end at, before and behind the border of a group, where the last group has few rows.
TEST_P(ApproximateText, AfterAHitIsThatOfTheRunThatSaved) {
  const auto prompts = testing::kSanitized ? std::vector<int64_t>{511, 1041}
                                           : std::vector<int64_t>{511, 700, 1024, 1025, 1027, 1039, 1040, 1041, 1500};
  for (const SpecType type : {SpecType::kNone, SpecType::kEagle3}) {
    EngineOptions without = options(type);
    without.draft.tree = type == SpecType::kEagle3 ? parse_tree("beams:4,8,8") : std::nullopt;
    Engine fresh(without);
    for (const int64_t tokens : prompts) {
      const TemporaryFolder folder;
      EngineOptions with = without;
      with.prefix_cache.folder = folder.path();
      Engine engine(with);
      const std::vector<int32_t> prompt = testing::made_up_ids(tokens, 512);
      const GenerateOptions run = approximate(3);
      const GenerateResult saving = engine.generate(prompt, run, nullptr), hit = engine.generate(prompt, run, nullptr);
      const std::string what = str(spec_type_name(type), " after ", tokens);
      EXPECT_GT(saving.speculation.of(StepMode::kPartial).steps, 0) << what;
      EXPECT_EQ(hit.token_ids, saving.token_ids) << what;
      EXPECT_EQ(hit.speculation.steps, saving.speculation.steps) << what;
      EXPECT_EQ(fresh.generate(prompt, run, nullptr).token_ids, saving.token_ids) << what;
      const int64_t last = (tokens - 1) % kGroup + 1;  // rows of the last group
      const int64_t scoring = GetParam() == DeviceChoice::kCpu ? std::min<int64_t>(16, last) : last;
      EXPECT_EQ(hit.prefix.rows, std::min(saving.prefix.saved_rows, tokens - scoring)) << what;
      // Another prompt with the same beginning.
      std::vector<int32_t> other(prompt.begin(), prompt.end() - 100);
      for (const int32_t id : testing::made_up_ids(103, 512, 9)) other.push_back(id);
      EXPECT_EQ(engine.generate(other, run, nullptr).token_ids, fresh.generate(other, run, nullptr).token_ids) << what;
    }
  }
}

}  // namespace
}  // namespace headrace
