// Answers by a schema, and penalties: each answer is valid, and every way to decode gives the text of plain decoding.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/grammar/schema.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/json_schema.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::JsonValidator;
using testing_support::SchemaJson;

struct RulesRun {
  DeviceChoice device = DeviceChoice::kCpu;
  bool hybrid = false;
};

// A way to decode.
struct RulesWay {
  SpecType draft = SpecType::kNone;
  VerifyOptions verify{};
  std::optional<PendingTreeLimits> pending{};
};

class RulesText : public ::testing::TestWithParam<RulesRun> {
 protected:
  RulesText() {
    GetParam().hybrid ? write_tiny_hybrid(folder_.path()) : write_tiny_model(folder_.path());
    std::ofstream(template_) << "{{ messages[-1].content }}<think>\n";
  }
  EngineOptions options(SpecType draft, bool thinks = false) const {
    EngineOptions o;
    o.model = folder_.path();
    o.device = {.choice = GetParam().device, .threads = 2};
    o.dtype = DType::kF32;
    o.ring.slots = 2;
    o.draft.type = draft;
    if (thinks) o.chat_template_file = template_;
    if (draft == SpecType::kSimple) o.draft.model = folder_.path();
    return o;
  }
  static std::vector<int32_t> prompt(const Engine& engine, uint64_t seed) {
    std::string text = "answer " + std::to_string(seed) + ": ";
    while (text.size() < 380) text += "{\"name\": \"Abc\", \"id\": 12, \"tags\": [true, null]} ";
    return engine.encode_plain(text);
  }
  static GenerateOptions plain(int64_t tokens, const SamplingSettings& sampling) {
    GenerateOptions run{.max_tokens = tokens, .sampling = sampling, .speculate = false};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return run;
  }
  static std::vector<RulesWay> ways() {
    const VerifyOptions full{.mode = VerifyMode::kFull};
    const auto lossless = [](int64_t interval) {
      return VerifyOptions{
          .mode = VerifyMode::kLossless, .partial = PartialKind::kBlocks, .budget = 64, .interval = interval};
    };
    std::vector<RulesWay> all = {{SpecType::kNgram, full, {}},
                                 {SpecType::kNone, lossless(8), PendingTreeLimits{.width = 0}},
                                 {SpecType::kNgram, lossless(32), PendingTreeLimits{.width = 0}}};
    if (GetParam().hybrid) {
      all.push_back({SpecType::kMtp, full, {}});
      all.push_back({SpecType::kMtp, lossless(16), PendingTreeLimits{.width = 0}});
    } else {
      all.push_back({SpecType::kSimple, full, {}});
      all.push_back({SpecType::kSimple, lossless(16), PendingTreeLimits{.width = 0}});
      all.push_back({SpecType::kNone, lossless(16), PendingTreeLimits{.width = 8, .nodes = 32}});
      all.push_back({SpecType::kSimple, lossless(32), PendingTreeLimits{.width = 8, .nodes = 32}});
    }
    return all;
  }
  static GenerateOptions by(const RulesWay& way, GenerateOptions run) {
    run.speculate = way.draft != SpecType::kNone;
    run.verify = way.verify;
    run.pending = way.pending;
    return run;
  }

  const TemporaryFolder folder_;
  const std::string template_ = folder_.path() + "/thinks.jinja";
};

std::vector<SamplingSettings> rules_samplings() {
  return {{.temperature = 0.0f}, {.temperature = 1.0f, .seed = 3}, {.temperature = 0.7f, .top_p = 0.9f, .seed = 4}};
}

TEST_P(RulesText, AnswersAreValidAndThoseOfPlainDecoding) {
  const int schemas = testing::kSanitized || GetParam().hybrid ? 12 : 100;
  int64_t accepted = 0, partial_steps = 0, complete = 0;
  std::mt19937_64 random(5);
  std::vector<SchemaJson> all;
  for (int i = 0; i < schemas; ++i) all.push_back(testing_support::random_schema(&random, 3));
  std::vector<GenerateResult> expected;
  Engine usual(options(SpecType::kNone));
  const auto run_of = [&](size_t i) {
    GenerateOptions run = plain(300, rules_samplings()[i % 3]);
    run.grammar = schema_grammar(all[i].dump(), "schema.json");
    return run;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const GenerateResult said = usual.generate(prompt(usual, i), run_of(i), nullptr);
    const SchemaJson value = SchemaJson::parse(said.text, nullptr, false);
    if (!said.incomplete) {
      ++complete;
      ASSERT_FALSE(value.is_discarded()) << all[i] << " of " << said.text;
      EXPECT_TRUE(JsonValidator(all[i]).valid(value)) << all[i] << " of " << said.text;
    }
    EXPECT_EQ(said.incomplete, said.finish_reason == FinishReason::kLength) << all[i] << " of " << said.text;
    expected.push_back(said);
  }
  EXPECT_GE(complete, static_cast<int64_t>(all.size()) * 9 / 10);
  const std::vector<RulesWay> list = ways();
  for (size_t w = 0; w < list.size(); ++w) {
    Engine engine(options(list[w].draft));
    for (size_t i = w; i < all.size(); i += list.size()) {
      GenerateOptions run = by(list[w], run_of(i));
      run.kv = i % 2 == 0 ? KvMode::kDevice : KvMode::kHost;
      const GenerateResult said = engine.generate(prompt(engine, i), run, nullptr);
      EXPECT_EQ(said.token_ids, expected[i].token_ids) << all[i] << " way " << w << ": " << said.text;
      EXPECT_EQ(said.incomplete, expected[i].incomplete);
      for (const StepMode mode : {StepMode::kFull, StepMode::kRefresh})
        accepted += said.speculation.of(mode).committed - said.speculation.of(mode).steps;
      partial_steps += said.speculation.of(StepMode::kPartial).steps;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_GT(partial_steps, 0);
}

TEST_P(RulesText, BeginsBehindTheThinking) {
  const SchemaJson schema = {{"type", "object"}, {"properties", {{"ok", {{"type", "boolean"}}}}}, {"required", {"ok"}}};
  Engine engine(options(SpecType::kNgram, true));
  const std::vector<int32_t> ids = engine.encode({.system = {}, .user = "the same words, the same words"});
  for (const SamplingSettings& sampling : rules_samplings()) {
    GenerateOptions run = plain(200, sampling);
    run.reasoning_budget = 20;
    run.grammar = schema_grammar(schema.dump(), "schema.json");
    const GenerateResult expected = engine.generate(ids, run, nullptr);
    const ThinkingPlace::Parts parts = expected.thinking.parts(expected.text);
    EXPECT_TRUE(JsonValidator(schema).valid(SchemaJson::parse(parts.answer, nullptr, false))) << expected.text;
    EXPECT_EQ(expected.finish_reason, FinishReason::kStop);
    EXPECT_FALSE(expected.incomplete);
    EXPECT_LE(expected.thinking.tokens, 20);
    run.speculate = true;
    EXPECT_EQ(engine.generate(ids, run, nullptr).token_ids, expected.token_ids);
  }
}

TEST_P(RulesText, IsIncompleteWhereTheLengthCutsIt) {
  Engine engine(options(SpecType::kNone));
  GenerateOptions run = plain(5, {});
  run.grammar = schema_grammar(R"({"type": "object", "required": ["long"], "properties": {"long": {}}})", "s");
  const GenerateResult said = engine.generate(prompt(engine, 1), run, nullptr);
  EXPECT_EQ(said.token_ids.size(), 5u);
  EXPECT_TRUE(said.incomplete);
  EXPECT_EQ(said.finish_reason, FinishReason::kLength);
  run.grammar = nullptr;
  EXPECT_FALSE(engine.generate(prompt(engine, 1), run, nullptr).incomplete);
}

// A run with rules follows one without, and both share the rows.
TEST_P(RulesText, SharesKeptRowsWithOtherRuns) {
  EngineOptions grouped = options(SpecType::kNone);
  grouped.prefill_group = 512;  // a GPU keeps whole groups
  Engine engine(grouped);
  const std::vector<int32_t> ids = testing::made_up_ids(700, engine.config().vocab, 5);
  GenerateOptions free = plain(20, {});
  free.keep = KeepRows::kPrompt;
  free.rules_reserved = true;
  engine.generate(ids, free, nullptr);
  GenerateOptions run = free;
  run.grammar = schema_grammar(R"({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2})", "s");
  const GenerateResult said = engine.generate(ids, run, nullptr);
  EXPECT_GT(said.kept_tokens, 0);
  GenerateOptions fresh = run;
  fresh.keep = KeepRows::kNone;
  fresh.max_tokens = 20;
  EXPECT_EQ(engine.generate(ids, fresh, nullptr).token_ids, said.token_ids);
}

TEST_P(RulesText, PenaltiesAreThoseOfPlainDecoding) {
  const std::vector<PenaltySettings> all = {{.presence = 1.5f},
                                            {.frequency = 0.6f},
                                            {.repetition = 1.4f},
                                            {.presence = 0.3f, .frequency = -0.4f, .repetition = 1.1f}};
  Engine usual(options(SpecType::kNone));
  std::vector<GenerateResult> expected;
  std::set<std::vector<int32_t>> texts;
  const auto run_of = [&](size_t i) {
    GenerateOptions run = plain(100, rules_samplings()[i / 2 % 3]);
    run.ignore_eos = true;
    run.penalties = all[i % all.size()];
    return run;
  };
  const size_t count = 12;
  for (size_t i = 0; i < count; ++i) {
    expected.push_back(usual.generate(prompt(usual, 0), run_of(i), nullptr));
    texts.insert(expected.back().token_ids);
    GenerateOptions without = run_of(i);
    without.penalties = {};
    EXPECT_NE(usual.generate(prompt(usual, 0), without, nullptr).token_ids, expected[i].token_ids) << i;
  }
  EXPECT_GE(texts.size(), 8u);
  const std::vector<RulesWay> list = ways();
  for (size_t w = 0; w < list.size(); ++w) {
    Engine engine(options(list[w].draft));
    for (size_t i = w % 2; i < count; i += testing::kSanitized ? 6 : 2) {
      GenerateOptions run = by(list[w], run_of(i));
      run.kv = i % 3 == 0 ? KvMode::kHost : KvMode::kDevice;
      EXPECT_EQ(engine.generate(prompt(engine, 0), run, nullptr).token_ids, expected[i].token_ids) << i << " way " << w;
    }
  }
}

// No token comes twice where the penalty is larger than any logit.
TEST_P(RulesText, AFrequencyPenaltyCountsTheAnswer) {
  Engine engine(options(SpecType::kNgram));
  GenerateOptions run = plain(60, {});
  run.ignore_eos = true;
  run.speculate = true;
  run.penalties.frequency = 2.0e4f;
  const std::vector<int32_t> ids = engine.generate(prompt(engine, 0), run, nullptr).token_ids;
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), ids.size());
}

std::vector<RulesRun> rules_runs() {
  std::vector<RulesRun> runs;
  for (const DeviceChoice device : testing::session_devices()) {
    runs.push_back({.device = device, .hybrid = false});
    runs.push_back({.device = device, .hybrid = true});
  }
  return runs;
}

INSTANTIATE_TEST_SUITE_P(Devices, RulesText, ::testing::ValuesIn(rules_runs()), [](const auto& given) {
  return testing::device_name(given.param.device) + (given.param.hybrid ? "_hybrid" : "");
});

}  // namespace
}  // namespace headrace
