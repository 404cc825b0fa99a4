// Look-up as a draft: the text is that of plain decoding, and comes in fewer passes.
#include "runtime/draft/ngram/draft.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/ngram/suffix_automaton.h"
#include "runtime/draft/open/open_draft.h"
#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

constexpr int64_t kAnswerTokens = 96;

class NgramText : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  std::vector<int32_t> speculate(const DraftOptions& options, SessionOptions run, int64_t* passes) {
    const auto draft_model = open_draft(options, *model_.device, model_.checkpoint->config(), model_.weights);
    EXPECT_TRUE(draft_model->loaded());
    run.context_tokens += draft_model->tree().levels;
    const auto draft = draft_model->start(
        {.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens, .sampling = run.sampling});
    run.pass_rows = draft_model->tree().nodes;
    run.draft = draft.get();
    const auto session = model_.session(run);
    std::vector<int32_t> tokens = {*session->prefill(prompt_, nullptr, nullptr)};
    Tree tree;
    Acceptance acceptance;
    for (; tokens.size() < kAnswerTokens; ++*passes) {
      draft->propose(tokens.back(), session->rows(), {}, &tree);
      accept(tree, session->verify(tree), &acceptance);
      session->commit(acceptance);
      draft->observe(tree, acceptance);
      for (size_t i = 1; i < acceptance.nodes.size(); ++i)
        tokens.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
      tokens.push_back(acceptance.next);
    }
    tokens.resize(kAnswerTokens);
    return tokens;
  }

  const LoadedModel model_{testing::tiny_model("qwen3"), DType::kF32, GetParam()};
  const std::vector<int32_t> prompt_ = testing::made_up_ids(480, 512);
};

TEST_P(NgramText, IsThatOfPlainDecoding) {
  DraftOptions options, narrow;
  options.type = narrow.type = SpecType::kNgram;
  narrow.most_tokens = 1;
  for (const float temperature : {0.0f, 0.3f}) {
    SessionOptions run = model_.options(static_cast<int64_t>(prompt_.size()), kAnswerTokens);
    run.sampling = {.temperature = temperature, .seed = 5};
    const std::vector<int32_t> plain = testing::decode_plainly(*model_.session(run), prompt_, kAnswerTokens);
    for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
      run.kv = kv;
      int64_t passes = 0;
      EXPECT_EQ(speculate(options, run, &passes), plain) << "temperature " << temperature;
      if (temperature == 0) {
        EXPECT_LT(passes, kAnswerTokens * 3 / 4);  // a small random model says the same again and again
      }
      passes = 0;
      EXPECT_EQ(speculate(narrow, run, &passes), plain);
    }
  }
}

// The text and its automaton are host memory like any other.
TEST_P(NgramText, ItsIndexCountsAgainstTheHostsBudget) {
  DraftOptions options;
  options.type = SpecType::kNgram;
  const auto draft_model = open_draft(options, *model_.device, model_.checkpoint->config(), model_.weights);
  const MemoryBudget& host = model_.device->host_mem();
  const uint64_t before = host.used_bytes();
  {
    const auto draft = draft_model->start({.prompt_tokens = 100, .context_tokens = 100'000});
    const uint64_t said = draft->memory().pinned_bytes;
    EXPECT_GE(said, 100'000 * (4 + 2 * sizeof(SuffixAutomaton::State) + 3 * sizeof(SuffixAutomaton::Edge)));
    EXPECT_EQ(host.used_bytes(), before);
    draft->allocate(*model_.compute);
    EXPECT_EQ(host.used_bytes(), before + said);
  }
  EXPECT_EQ(host.used_bytes(), before);
  SessionOptions run = model_.options(100, 50);
  const uint64_t plain = model_.session(run)->plan().host_total_bytes;
  const auto draft = draft_model->start({.prompt_tokens = 100, .context_tokens = 150});
  run.draft = draft.get();
  EXPECT_GE(model_.session(run)->plan().host_total_bytes, plain + draft->memory().pinned_bytes);
  const auto more = draft_model->start({.prompt_tokens = 100, .context_tokens = 150, .earlier_answers = true});
  EXPECT_GE(more->memory().pinned_bytes, draft->memory().pinned_bytes + EarlierAnswers::kTokens * 100);
}

// ---- earlier answers
// -------------------------------------------------------------------------------------------------

class EarlierAnswersText : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static std::unique_ptr<Engine> open(SpecType type = SpecType::kNgram) {
    EngineOptions options;
    options.model = testing::tiny_model("llama31");
    options.device = {.choice = GetParam(), .threads = 2};
    options.want_tokenizer = false;
    options.dtype = DType::kF32;
    options.draft.type = type;
    return std::make_unique<Engine>(options);
  }
  // At this temperature an answer does not repeat itself.
  static GenerateResult answer(Engine& engine, bool earlier_answers, VerifyMode mode = VerifyMode::kFull) {
    GenerateOptions run{.max_tokens = 128, .ignore_eos = true};
    run.sampling = {.temperature = 1.0f, .seed = 3};
    run.earlier_answers = earlier_answers;
    run.step_costs = {.partial_ms = 1, .refresh_ms = 4};  // a busy machine changes no count below
    run.verify = VerifyOptions{.mode = mode};
    if (mode != VerifyMode::kFull) run.verify->budget = 512;
    if (mode != VerifyMode::kFull) run.verify->interval = 16;
    return engine.generate(testing::made_up_ids(1500, 512), run, nullptr);
  }
};

TEST_P(EarlierAnswersText, AreFoundAgain) {
  const auto plain = open(SpecType::kNone), with = open(), without = open();
  const std::vector<int32_t> text = answer(*plain, true).token_ids;
  const GenerateResult first = answer(*with, true);
  EXPECT_EQ(first.token_ids, text);
  EXPECT_GT(first.speculation.steps, 100);
  for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kLossless}) {
    const GenerateResult again = answer(*with, true, mode);
    EXPECT_EQ(again.token_ids, text);
    EXPECT_GT(again.speculation.tau(), 1.5);
    const GenerateResult alone = answer(*without, false, mode);
    EXPECT_EQ(alone.token_ids, text);
    EXPECT_LT(alone.speculation.tau(), 0.5);
  }
}

// The text of an approximate run depends on what the draft guesses, and must not depend on earlier runs.
TEST_P(EarlierAnswersText, AreNotReadByApproximateRuns) {
  const auto fresh = open(), with = open();
  answer(*with, true);
  const GenerateResult a = answer(*fresh, true, VerifyMode::kApproximate);
  const GenerateResult b = answer(*with, true, VerifyMode::kApproximate);
  EXPECT_EQ(a.token_ids, b.token_ids);
  EXPECT_EQ(a.speculation.steps, b.speculation.steps);
  EXPECT_EQ(a.speculation.accepted, b.speculation.accepted);
}

INSTANTIATE_TEST_SUITE_P(Devices, EarlierAnswersText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST(EarlierAnswers, TheLatestAreKept) {
  EarlierAnswers answers;
  const std::vector<int32_t> first(5000, 1), second(5000, 2), whole(20'000, 3);
  answers.add(first);
  EXPECT_EQ(answers.tokens().size(), 5001u);
  EXPECT_EQ(answers.tokens().back(), EarlierAnswers::kEnd);
  answers.add(second);
  ASSERT_EQ(answers.tokens().size(), static_cast<size_t>(EarlierAnswers::kTokens));
  EXPECT_EQ(std::count(answers.tokens().begin(), answers.tokens().end(), 2), 5000);
  EXPECT_EQ(std::count(answers.tokens().begin(), answers.tokens().end(), 1), EarlierAnswers::kTokens - 5002);
  answers.add(whole);
  ASSERT_EQ(answers.tokens().size(), static_cast<size_t>(EarlierAnswers::kTokens));
  EXPECT_EQ(std::count(answers.tokens().begin(), answers.tokens().end(), 3), EarlierAnswers::kTokens - 1);
}

INSTANTIATE_TEST_SUITE_P(Devices, NgramText, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
