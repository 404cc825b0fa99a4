// Teacher forcing: the answer is what was given, and each of its tokens is ranked by the draft and compared with the
// target's sample, as if the target had said what is before it.
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/engine/engine.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

constexpr size_t kForcedPrompt = 700;
constexpr int64_t kForcedTokens = 24;

class Forced : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  Engine open(const DraftOptions& draft) const {
    EngineOptions o;
    o.model = testing::tiny_model("llama31");
    o.device = {.choice = GetParam(), .threads = 2};
    o.want_tokenizer = false;
    o.dtype = DType::kF32;
    o.draft = draft;
    return Engine(o);
  }
  DraftOptions own() const { return {.type = SpecType::kSimple, .model = testing::tiny_model("llama31"), .window = 0}; }

  static std::vector<int32_t> prompt() { return testing::made_up_ids(kForcedPrompt, 512); }
  static GenerateResult follow(Engine& engine, const std::vector<int32_t>& text) {
    GenerateOptions run{.max_tokens = static_cast<int64_t>(text.size()), .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    run.tree_limits = TreeLimits{.nodes = 2, .levels = 1};
    run.forced = text;
    return engine.generate(prompt(), run, nullptr);
  }
  const TemporaryFolder folder_;
};

// The model as its own draft ranks tokens as the target does. The text is what the target says, but for one token:
// what follows is ranked after that one.
TEST_P(Forced, RanksEachTokenAfterThoseThatWereGiven) {
  Engine engine = open(own());
  GenerateOptions run{.max_tokens = kForcedTokens, .ignore_eos = true};
  run.log_probs = LogProbs::kComputed;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  const GenerateResult said = engine.generate(prompt(), run, nullptr);
  const GenerateResult same = follow(engine, said.token_ids);
  EXPECT_EQ(same.token_ids, said.token_ids);
  ASSERT_EQ(same.forced.size(), said.token_ids.size() - 1);
  for (size_t i = 0; i < same.forced.size(); ++i) {
    const ForcedToken& token = same.forced[i];
    SCOPED_TRACE(i);
    EXPECT_EQ(token.token, said.token_ids[i + 1]);
    EXPECT_TRUE(token.sampled);
    ASSERT_TRUE(token.draft.has_value());
    EXPECT_TRUE(token.draft->first);
    EXPECT_NEAR(token.draft->log_prob, static_cast<double>(said.answer[i + 1].chosen.log_prob), 1e-3);
  }

  std::vector<int32_t> other = said.token_ids;
  other[5] = (other[5] + 1) % 512;
  const GenerateResult parted = follow(engine, other);
  EXPECT_EQ(parted.token_ids, other);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(parted.forced[i].draft->log_prob, same.forced[i].draft->log_prob);
  EXPECT_FALSE(parted.forced[4].sampled);
  EXPECT_FALSE(parted.forced[4].draft->first);
  EXPECT_LT(parted.forced[4].draft->log_prob, same.forced[4].draft->log_prob);
  // A fresh run over the same tokens says what comes after the other one.
  std::vector<int32_t> longer = prompt();
  longer.insert(longer.end(), other.begin(), other.begin() + 6);
  run.max_tokens = 1;
  EXPECT_EQ(parted.forced[5].sampled, engine.generate(longer, run, nullptr).token_ids[0] == other[6]);
}

// All of a vocabulary sums up to one, and a head with a vocabulary of its own knows which tokens it cannot propose.
TEST_P(Forced, OfADraftWithAVocabularyOfItsOwn) {
  testing_support::DraftFiles head = testing_support::tiny_eagle3_head();
  constexpr int64_t kOwn = 8;  // tokens 0, 3, ... 21
  head.config["draft_vocab_size"] = kOwn;
  head.add("lm_head.weight", {kOwn, 64});
  std::string offsets, marks(512, '\0');
  for (int64_t i = 0; i < kOwn; ++i) {
    const int64_t offset = 2 * i;
    offsets.append(reinterpret_cast<const char*>(&offset), sizeof offset);
    marks[static_cast<size_t>(3 * i)] = 1;
  }
  head.tensors["d2t"] = {"I64", {kOwn}, offsets};
  head.tensors["t2d"] = {"BOOL", {512}, marks};
  head.write(folder_.path());
  Engine engine = open({.type = SpecType::kEagle3, .model = folder_.path(), .tree = chain_shape(2)});
  double sum = 0;
  int64_t first = 0;
  for (int32_t token = 0; token < 24; ++token) {
    const GenerateResult result = follow(engine, {7, token});
    const TokenRank rank = result.forced.at(0).draft.value();
    EXPECT_EQ(std::isinf(rank.log_prob), token % 3 != 0) << token;
    sum += std::exp(rank.log_prob);
    first += rank.first ? 1 : 0;
  }
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_EQ(first, 1);
}

TEST_P(Forced, AskedOfEveryDraft) {
  const std::vector<int32_t> text = testing::made_up_ids(kForcedTokens, 512, 5);
  const auto ranked = [&](const DraftOptions& draft) {
    Engine engine = open(draft);
    const GenerateResult result = follow(engine, text);
    EXPECT_EQ(result.token_ids, text);
    EXPECT_EQ(result.forced.size(), text.size() - 1);
    int64_t count = 0;
    for (const ForcedToken& token : result.forced) count += token.draft && token.draft->log_prob < 0 ? 1 : 0;
    return count;
  };
  testing_support::tiny_longspec_layer().write(folder_.path());
  EXPECT_EQ(ranked({.type = SpecType::kLongSpec, .model = folder_.path()}), kForcedTokens - 1);
  testing_support::tiny_eagle3_head().write(folder_.path());
  EXPECT_EQ(ranked({.type = SpecType::kEagle3, .model = folder_.path()}), kForcedTokens - 1);
  EXPECT_EQ(ranked(own()), kForcedTokens - 1);
  EXPECT_EQ(ranked({.type = SpecType::kNgram}), 0);
  EXPECT_EQ(ranked({}), 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, Forced, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
