// Log-probabilities of an answer's tokens: those of the softmax over the logits, whatever draft, tree or partial
// verification has produced the tokens, wherever the rows are.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "runtime/engine/engine.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

constexpr int64_t kTokens = 60;
constexpr size_t kScoredPrompt = 1000;

class AnswerLogProbs : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  EngineOptions options(SpecType draft = SpecType::kNone) const {
    EngineOptions o;
    o.model = testing::tiny_model("llama31");
    o.device = {.choice = std::get<0>(GetParam()), .threads = 2};
    o.want_tokenizer = false;
    o.dtype = DType::kBF16;
    o.cache_type_k = o.cache_type_v = std::get<1>(GetParam());
    o.ring.slots = 2;
    o.draft.type = draft;
    if (draft == SpecType::kSimple) o.draft.model = testing::tiny_model("llama31");
    return o;
  }
  static GenerateOptions scored(float temperature, int64_t top = kMaxTopTokens) {
    return {.max_tokens = kTokens,
            .sampling = {.temperature = temperature, .seed = 3},
            .ignore_eos = true,
            .log_probs = LogProbs::kComputed,
            .top_tokens = top};
  }
  static GenerateResult answer(const EngineOptions& opened, const GenerateOptions& run) {
    return Engine(opened).generate(testing::made_up_ids(kScoredPrompt, 512), run, nullptr);
  }
};

void expect_same(const ScoredToken& a, const ScoredToken& b) {
  EXPECT_EQ(a.id, b.id);
  EXPECT_EQ(a.log_prob, b.log_prob);  // to the bit
}

void expect_same(const GenerateResult& a, const GenerateResult& b) {
  ASSERT_EQ(a.token_ids, b.token_ids);
  ASSERT_EQ(a.answer.size(), b.answer.size());
  for (size_t i = 0; i < a.answer.size(); ++i) {
    SCOPED_TRACE(i);
    expect_same(a.answer[i].chosen, b.answer[i].chosen);
    ASSERT_EQ(a.answer[i].top.size(), b.answer[i].top.size());
    for (size_t j = 0; j < a.answer[i].top.size(); ++j) expect_same(a.answer[i].top[j], b.answer[i].top[j]);
  }
}

// Against the logits of a session, in doubles. Temperature and top-p decide which token it is, and nothing else.
TEST_P(AnswerLogProbs, AreThoseOfTheLogits) {
  GenerateOptions run = scored(0.9f);
  run.sampling.top_p = 0.8f;
  const GenerateResult result = answer(options(), run);
  const testing::LoadedModel model(testing::tiny_model("llama31"), std::get<1>(GetParam()), std::get<0>(GetParam()));
  SessionOptions session = model.options(kScoredPrompt, kTokens);
  session.sampling = run.sampling;
  std::vector<std::vector<float>> logits;
  const std::vector<int32_t> tokens =
      testing::decode_plainly(*model.session(session), testing::made_up_ids(kScoredPrompt, 512), kTokens, &logits);
  ASSERT_EQ(result.token_ids, tokens);
  ASSERT_EQ(result.answer.size(), tokens.size());
  for (size_t i = 0; i < tokens.size(); ++i) {
    SCOPED_TRACE(i);
    const std::vector<float>& row = logits[i];
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    std::vector<int32_t> order(row.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&row](int32_t a, int32_t b) {
      return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)];
    });
    const auto expected = [&](int32_t id) { return static_cast<double>(row[static_cast<size_t>(id)]) - std::log(sum); };
    EXPECT_EQ(result.answer[i].chosen.id, tokens[i]);
    EXPECT_NEAR(static_cast<double>(result.answer[i].chosen.log_prob), expected(tokens[i]), 1e-5);
    ASSERT_EQ(result.answer[i].top.size(), static_cast<size_t>(kMaxTopTokens));
    for (size_t j = 0; j < result.answer[i].top.size(); ++j) {
      EXPECT_EQ(result.answer[i].top[j].id, order[j]);
      EXPECT_NEAR(static_cast<double>(result.answer[i].top[j].log_prob), expected(order[j]), 1e-5);
    }
  }
}

TEST_P(AnswerLogProbs, DoNotDependOnHowMuchIsAskedFor) {
  const GenerateResult most = answer(options(), scored(0.9f));
  const GenerateResult none = answer(options(), scored(0.9f, 0));
  GenerateOptions plain = scored(0.9f);
  plain.log_probs = LogProbs::kNone;
  const GenerateResult without = answer(options(), plain);
  EXPECT_EQ(without.token_ids, most.token_ids);
  EXPECT_TRUE(without.answer.empty());
  ASSERT_EQ(none.answer.size(), most.answer.size());
  for (size_t i = 0; i < none.answer.size(); ++i) {
    EXPECT_TRUE(none.answer[i].top.empty());
    expect_same(none.answer[i].chosen, most.answer[i].chosen);
  }
}

TEST_P(AnswerLogProbs, AreTheSameForEveryDraftAndVerification) {
  const PendingTreeLimits tree{.width = 8, .grown = kMaxPending + 16, .nodes = kMaxPending + 16, .least = 0.05};
  for (const float temperature : {0.0f, 0.9f}) {
    if (testing::kSanitized && temperature == 0) continue;
    const GenerateResult plain = answer(options(), scored(temperature));
    for (const SpecType draft : {SpecType::kNone, SpecType::kNgram, SpecType::kSimple}) {
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        if (testing::kSanitized && kv == KvMode::kDevice) continue;
        SCOPED_TRACE(str(spec_type_name(draft), ", --kv ", static_cast<int>(kv), ", temperature ", temperature));
        GenerateOptions run = scored(temperature);
        run.kv = kv;
        run.verify = VerifyOptions{.mode = VerifyMode::kFull};
        expect_same(answer(options(draft), run), plain);
        run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = 10};
        run.pending = PendingTreeLimits{.width = 0};
        const GenerateResult chain = answer(options(draft), run);
        expect_same(chain, plain);
        EXPECT_GT(chain.speculation.of(StepMode::kPartial).steps, 0);
        run.pending = tree;
        expect_same(answer(options(draft), run), plain);
        run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8, .interval = 10};
        expect_same(answer(options(draft), run), plain);
      }
    }
  }
}

// An approximate run has them from the pass that produced the token, a partial one.
TEST_P(AnswerLogProbs, OfAnApproximateRunAreOfEachToken) {
  GenerateOptions run = scored(0);
  run.verify = VerifyOptions{.mode = VerifyMode::kApproximate, .budget = 64, .interval = 10};
  const GenerateResult result = answer(options(), run);
  EXPECT_GT(result.speculation.of(StepMode::kPartial).steps, 0);
  ASSERT_EQ(result.answer.size(), result.token_ids.size());
  for (size_t i = 0; i < result.answer.size(); ++i) {
    EXPECT_EQ(result.answer[i].chosen.id, result.token_ids[i]);
    expect_same(result.answer[i].chosen, result.answer[i].top[0]);  // at temperature 0 the likeliest
  }
}

// A server reserves the memory for each run, so that one that asks for them shares the rows of one that did not.
TEST_P(AnswerLogProbs, ShareKeptRows) {
  GenerateOptions run = scored(0.9f);
  const GenerateResult fresh = answer(options(), run);
  Engine engine(options());
  run.keep = KeepRows::kPrompt;
  run.log_probs = LogProbs::kReserved;
  const GenerateResult first = engine.generate(testing::made_up_ids(kScoredPrompt, 512), run, nullptr);
  EXPECT_TRUE(first.answer.empty());
  run.log_probs = LogProbs::kComputed;
  const GenerateResult second = engine.generate(testing::made_up_ids(kScoredPrompt, 512), run, nullptr);
  if (std::get<0>(GetParam()) == DeviceChoice::kCpu) {  // a GPU keeps groups of 2,048
    EXPECT_GT(second.kept_tokens, 900);
  }
  expect_same(second, fresh);
  run.log_probs = LogProbs::kNone;
  EXPECT_EQ(engine.generate(testing::made_up_ids(kScoredPrompt, 512), run, nullptr).kept_tokens, 0);
}

// The type is that of the KV cache.
INSTANTIATE_TEST_SUITE_P(Types, AnswerLogProbs,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values(testing::RowsType(DType::kBF16),
                                                              testing::RowsType(DType::kInt8))),
                         testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
