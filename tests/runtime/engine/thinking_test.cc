// The budget of thinking: where its end is forced, and that every way to decode gives the text of plain decoding.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

constexpr int64_t kThinkingAnswer = 80;

struct ThinkingRun {
  DeviceChoice device = DeviceChoice::kCpu;
  bool hybrid = false;
};

class ThinkingText : public ::testing::TestWithParam<ThinkingRun> {
 protected:
  ThinkingText() {
    GetParam().hybrid ? write_tiny_hybrid(folder_.path()) : write_tiny_model(folder_.path());
    std::ofstream(template_) << "{{ messages[-1].content.split('</think>')[-1] }}<think>\n";
  }
  EngineOptions options(SpecType draft = SpecType::kNone) const {
    EngineOptions o;
    o.model = folder_.path();
    o.device = {.choice = GetParam().device, .threads = 2};
    o.dtype = DType::kF32;
    o.chat_template_file = template_;
    o.ring.slots = 2;
    o.draft.type = draft;
    if (draft == SpecType::kSimple) o.draft.model = folder_.path();
    return o;
  }
  // It ends with the opening mark. Text that repeats, so that look-up finds something.
  static std::vector<int32_t> prompt(const Engine& engine) {
    std::string text;
    while (text.size() < 380) text += "the same words again, ";
    return engine.encode({.system = {}, .user = text});
  }
  static GenerateOptions plain(int64_t budget, const SamplingSettings& sampling = {}) {
    GenerateOptions run{.max_tokens = kThinkingAnswer, .sampling = sampling, .ignore_eos = true, .speculate = false};
    run.reasoning_budget = budget;
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return run;
  }
  static std::vector<int32_t> close(const Engine& engine) {
    return engine.tokenizer().encode("</think>", AddBos::kNo, SpecialTokens::kParse);
  }

  const TemporaryFolder folder_;
  const std::string template_ = folder_.path() + "/thinks.jinja";
};

std::vector<SamplingSettings> thinking_samplings() { return {{.temperature = 0.0f}, {.temperature = 0.9f, .seed = 3}}; }

// The tokens before the mark are those of a run without a budget, and those behind it those of a run whose prompt has
// the mark.
TEST_P(ThinkingText, EndsAfterAsManyTokens) {
  Engine engine(options());
  const std::vector<int32_t> ids = prompt(engine), mark = close(engine);
  ASSERT_EQ(mark.size(), 8u);  // this vocabulary has bytes
  for (const SamplingSettings& sampling : thinking_samplings()) {
    const GenerateResult free = engine.generate(ids, plain(-1, sampling), nullptr);
    EXPECT_TRUE(free.thinking.inside);
    EXPECT_EQ(free.thinking.tokens, kThinkingAnswer);
    EXPECT_EQ(free.thinking.parts(free.text).answer, "");
    for (const int64_t budget : {0, 1, 17, 70, 72, 75, 79, 80}) {
      SCOPED_TRACE(budget);
      const GenerateResult limited = engine.generate(ids, plain(budget, sampling), nullptr);
      std::vector<int32_t> expected(free.token_ids.begin(), free.token_ids.begin() + budget);
      expected.insert(expected.end(), mark.begin(), mark.end());
      std::vector<int32_t> longer = ids;
      longer.insert(longer.end(), expected.begin(), expected.end());
      if (expected.size() < kThinkingAnswer) {
        GenerateOptions rest = plain(-1, sampling);
        rest.max_tokens = kThinkingAnswer - static_cast<int64_t>(expected.size());
        const std::vector<int32_t> more = engine.generate(longer, rest, nullptr).token_ids;
        expected.insert(expected.end(), more.begin(), more.end());
      }
      expected.resize(kThinkingAnswer);
      EXPECT_EQ(limited.token_ids, expected);
      EXPECT_EQ(limited.thinking.tokens, budget);
      const ThinkingPlace::Parts parts = limited.thinking.parts(limited.text);
      EXPECT_EQ(parts.answer.empty(), budget >= kThinkingAnswer - 8);
      EXPECT_EQ(limited.text.find("</think>") != std::string::npos, budget <= kThinkingAnswer - 8);
    }
  }
}

TEST_P(ThinkingText, IsThatOfPlainDecodingInEveryMode) {
  int64_t accepted = 0, partial_steps = 0, overturned = 0;
  for (const SpecType draft : {SpecType::kNone, SpecType::kSimple, SpecType::kNgram, SpecType::kMtp}) {
    if (draft == SpecType::kMtp && !GetParam().hybrid) continue;
    if (draft == SpecType::kSimple && GetParam().hybrid) continue;
    Engine engine(options(draft));
    const std::vector<int32_t> ids = prompt(engine);
    for (const SamplingSettings& sampling : thinking_samplings()) {
      for (const int64_t budget : testing::kSanitized ? std::vector<int64_t>{21} : std::vector<int64_t>{0, 21}) {
        const GenerateResult expected = engine.generate(ids, plain(budget, sampling), nullptr);
        ASSERT_EQ(expected.thinking.tokens, budget);
        const auto expect = [&](const VerifyOptions& verify, const std::optional<PendingTreeLimits>& pending) {
          GenerateOptions run = plain(budget, sampling);
          run.speculate = draft != SpecType::kNone;
          run.verify = verify;
          run.pending = pending;
          for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
            run.kv = kv;
            const GenerateResult said = engine.generate(ids, run, nullptr);
            EXPECT_EQ(said.token_ids, expected.token_ids)
                << spec_type_name(draft) << " T " << sampling.temperature << " budget " << budget << " interval "
                << verify.interval << (pending && pending->width > 0 ? " tree" : "");
            EXPECT_EQ(said.thinking.tokens, budget);
            EXPECT_EQ(said.text, expected.text);
            for (const StepMode mode : {StepMode::kFull, StepMode::kRefresh})
              accepted += said.speculation.of(mode).committed - said.speculation.of(mode).steps;
            partial_steps += said.speculation.of(StepMode::kPartial).steps;
            overturned += said.speculation.verify_outcome.rejected;
          }
        };
        if (draft != SpecType::kNone) expect({.mode = VerifyMode::kFull}, {});
        for (const int64_t interval : {8, 128}) {
          expect({.mode = VerifyMode::kLossless, .partial = PartialKind::kBlocks, .budget = 64, .interval = interval},
                 PendingTreeLimits{.width = 0});
          if (!GetParam().hybrid) {
            expect({.mode = VerifyMode::kLossless, .partial = PartialKind::kBlocks, .budget = 64, .interval = interval},
                   PendingTreeLimits{.width = 8, .nodes = 32});
          }
        }
      }
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(partial_steps, 0);
  EXPECT_GT(overturned, 0);
}

// An approximate run's text is its own, but its thinking is as long.
TEST_P(ThinkingText, OfAnApproximateRunIsAsLong) {
  Engine engine(options(SpecType::kNgram));
  const std::vector<int32_t> ids = prompt(engine), mark = close(engine);
  for (const int64_t budget : {0, 13, 40}) {
    GenerateOptions run = plain(budget);
    run.speculate = true;
    run.verify = VerifyOptions{.mode = VerifyMode::kApproximate, .budget = 64, .interval = 20};
    const GenerateResult said = engine.generate(ids, run, nullptr);
    EXPECT_EQ(said.thinking.tokens, budget);
    ASSERT_GE(said.token_ids.size(), static_cast<size_t>(budget) + mark.size());
    EXPECT_EQ(std::vector<int32_t>(said.token_ids.begin() + budget, said.token_ids.begin() + budget + 8), mark);
  }
}

// The log-probability of a token that nothing chose.
TEST_P(ThinkingText, AForcedTokenIsCertain) {
  Engine engine(options());
  GenerateOptions run = plain(3);
  run.log_probs = LogProbs::kComputed;
  const GenerateResult said = engine.generate(prompt(engine), run, nullptr);
  ASSERT_EQ(said.answer.size(), static_cast<size_t>(kThinkingAnswer));
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(said.answer[i].chosen.log_prob == 0, 3 <= i && i < 11) << i;
    EXPECT_EQ(said.answer[i].chosen.id, said.token_ids[i]);
  }
}

// An answer that does not begin with the mark does not think, and is not limited.
TEST_P(ThinkingText, AnAnswerThatDoesNotThinkIsNotLimited) {
  Engine engine(options());
  const std::vector<int32_t> ids = engine.encode_plain("no mark at the end");
  const GenerateResult free = engine.generate(ids, plain(-1), nullptr),
                       limited = engine.generate(ids, plain(2), nullptr);
  EXPECT_EQ(limited.token_ids, free.token_ids);
  EXPECT_FALSE(limited.thinking.inside);
  EXPECT_EQ(limited.thinking.tokens, 0);
}

std::vector<ThinkingRun> thinking_runs() {
  std::vector<ThinkingRun> runs;
  for (const DeviceChoice device : testing::session_devices()) {
    runs.push_back({.device = device, .hybrid = false});
    runs.push_back({.device = device, .hybrid = true});
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Devices, ThinkingText, ::testing::ValuesIn(thinking_runs()), [](const auto& given) {
  return testing::device_name(given.param.device) + (given.param.hybrid ? "_hybrid" : "");
});

}  // namespace
}  // namespace headrace
