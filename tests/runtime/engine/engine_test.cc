// Engine::generate: how runs end, what is refused before any work is done, what the result says.
#include "runtime/engine/engine.h"

#include <gtest/gtest.h>

#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

EngineOptions tiny(const char* name = "llama31") {
  EngineOptions options;
  options.model = testing::tiny_model(name);
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  options.want_tokenizer = false;
  options.dtype = DType::kF32;
  return options;
}

template <typename Call>
Error expect_error(ExitCode code, const char* part, const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    return error;
  }
  ADD_FAILURE() << "no error that says " << part;
  return Error({});
}

class RecordedProgress : public Progress {
 public:
  void begin(std::string_view stage, std::string_view, int64_t total) override {
    stages.emplace_back(stage);
    total_ = total;
    last_ = 0;
  }
  void update(int64_t done) override {
    EXPECT_GE(done, last_);
    EXPECT_LE(done, total_);
    last_ = done;
    ++updates;
  }
  void end() override { ends += 1; }
  std::vector<std::string> stages;
  int updates = 0, ends = 0;

 private:
  int64_t total_ = 0, last_ = 0;
};

TEST(Engine, StopsAtTheLengthAskedFor) {
  Engine engine(tiny());
  GenerateOptions run{.max_tokens = 17, .ignore_eos = true};
  const GenerateResult result = engine.generate(testing::made_up_ids(30, 512), run, nullptr);
  EXPECT_EQ(result.token_ids.size(), 17u);
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  EXPECT_EQ(result.prompt_tokens, 30);
  EXPECT_EQ(result.timings.decode_steps, 16);
  EXPECT_GT(result.timings.ttft_ms, 0);
  EXPECT_GT(result.memory.kv_bytes, 0u);
}

TEST(Engine, OneTokenNeedsNoStep) {
  Engine engine(tiny());
  const GenerateResult result = engine.generate({5, 6}, {.max_tokens = 1, .ignore_eos = true}, nullptr);
  EXPECT_EQ(result.token_ids.size(), 1u);
  EXPECT_EQ(result.timings.decode_steps, 0);
}

// The run ends where plain decoding ends, wherever in an accepted path that is, and however long the prompt before.
TEST(Engine, ADraftChangesNoTextAndNoEnd) {
  EngineOptions options = tiny();
  Engine plain(options);
  options.draft.type = SpecType::kNgram;
  Engine drafting(options);
  std::vector<int32_t> prompt = testing::made_up_ids(40, 512);
  prompt.insert(prompt.end(), prompt.begin(), prompt.end());
  // Its own text is what a look-up guesses best: with it in the prompt, paths are accepted.
  const GenerateResult said = plain.generate(prompt, {.max_tokens = 60, .ignore_eos = true}, nullptr);
  std::vector<int32_t> again = prompt;
  again.insert(again.end(), said.token_ids.begin(), said.token_ids.end());
  int64_t accepted = 0;
  for (const std::vector<int32_t>* ids : {&prompt, &again}) {
    for (const bool ignore_eos : {false, true}) {
      for (const int64_t tokens : {1, 2, 3, 4, 5, 7, 10, 64}) {
        const GenerateOptions run{.max_tokens = tokens, .ignore_eos = ignore_eos};
        const GenerateResult a = plain.generate(*ids, run, nullptr), b = drafting.generate(*ids, run, nullptr);
        EXPECT_EQ(a.token_ids, b.token_ids) << tokens;
        EXPECT_EQ(a.finish_reason, b.finish_reason);
        EXPECT_EQ(a.timings.decode_tokens, b.timings.decode_tokens);
        EXPECT_LE(b.timings.decode_steps, a.timings.decode_steps);
        EXPECT_EQ(b.speculation.type, "ngram-simple");
        EXPECT_EQ(b.speculation.steps, b.timings.decode_steps);
        accepted += b.speculation.accepted;
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

TEST(Engine, ADraftFillsTheContextAndNoMore) {
  EngineOptions options = tiny();
  options.ctx_size = 90;
  Engine plain(options);
  options.draft.type = SpecType::kNgram;
  Engine drafting(options);
  const GenerateOptions run{.max_tokens = -1, .ignore_eos = true};
  for (const int64_t prompt : {60, 88, 89}) {
    const std::vector<int32_t> ids = testing::made_up_ids(prompt, 512);
    const GenerateResult a = plain.generate(ids, run, nullptr), b = drafting.generate(ids, run, nullptr);
    EXPECT_EQ(static_cast<int64_t>(b.token_ids.size()), 90 - prompt);
    EXPECT_EQ(a.token_ids, b.token_ids);
  }
}

// A draft can be replaced between runs; a refused one leaves none.
TEST(Engine, TakesAnotherDraft) {
  Engine engine(tiny());
  const std::vector<int32_t> ids = testing::repeated_ids(120, 512);
  const GenerateOptions run{.max_tokens = 40, .keep = KeepRows::kAll, .ignore_eos = true};
  const GenerateResult plain = engine.generate(ids, run, nullptr);
  EXPECT_EQ(plain.speculation.type, "");
  engine.use_draft({.type = SpecType::kNgram});
  const GenerateResult drafted = engine.generate(ids, run, nullptr);
  EXPECT_EQ(drafted.speculation.type, "ngram-simple");
  EXPECT_EQ(drafted.kept_tokens, 0) << "rows of a run without the draft";
  EXPECT_EQ(drafted.token_ids, plain.token_ids);
  EXPECT_THROW(engine.use_draft({.type = SpecType::kEagle3}), Error);
  EXPECT_EQ(engine.generate(ids, run, nullptr).speculation.type, "");
}

TEST(Engine, RefusesDraftsThatMakeNoSense) {
  const auto opened = [](DraftOptions draft) {
    EngineOptions options = tiny();
    options.draft = std::move(draft);
    return [options] { Engine engine(options); };
  };
  expect_error(ExitCode::kUsage, "needs a draft: -md", opened({.type = SpecType::kEagle3}));
  expect_error(ExitCode::kUsage, "without --spec-type", opened({.model = "somewhere"}));
  expect_error(ExitCode::kUsage, "at least 320", opened({.type = SpecType::kEagle3, .model = "x", .window = 319}));
  expect_error(ExitCode::kUsage, "ngram-simple", opened({.type = SpecType::kNgram, .model = "x"}));
  expect_error(ExitCode::kUsage, "--tree", opened({.type = SpecType::kNgram, .tree = chain_shape(3)}));
  expect_error(ExitCode::kBadInput, "llama31: has no MTP block", opened({.type = SpecType::kMtp}));
}

// A block in the model's own file, unless another draft is named or none is wanted.
TEST(Engine, ABlockOfTheModelsOwnIsTheUsualDraft) {
  const std::vector<int32_t> ids = testing::made_up_ids(60, 320);
  std::vector<int32_t> said;
  for (const auto& [asked, chosen] : {std::pair(SpecType::kNone, SpecType::kNone), {SpecType::kAuto, SpecType::kMtp}}) {
    EngineOptions options = tiny("qwen35");
    options.draft.type = asked;
    Engine engine(options);
    EXPECT_EQ(engine.draft_type(), chosen);
    const GenerateResult result = engine.generate(ids, {.max_tokens = 20, .ignore_eos = true}, nullptr);
    EXPECT_EQ(result.speculation.type, chosen == SpecType::kNone ? "" : "draft-mtp");
    if (said.empty()) said = result.token_ids;
    EXPECT_EQ(result.token_ids, said);
    EXPECT_EQ(engine.plan(static_cast<int64_t>(ids.size()), {}).draft, result.speculation.type);
  }
  EngineOptions options = tiny();
  options.draft.type = SpecType::kAuto;
  EXPECT_EQ(Engine(options).draft_type(), SpecType::kNone);
  options.draft.tree = chain_shape(3);
  expect_error(ExitCode::kUsage, "--tree: has no effect without --spec-type", [&] { Engine engine(options); });
  options = tiny("qwen35");
  options.draft = {.type = SpecType::kAuto, .model = "somewhere"};
  expect_error(ExitCode::kUsage, "somewhere has no effect without --spec-type", [&] { Engine engine(options); });
}

// It makes no run impossible that fits without it; one that was named does. Partial steps give way before it, unless
// they were asked for. What gives way is said.
class TheUsualDraft : public ::testing::Test {
 protected:
  std::optional<RunPlan> plan_at(SpecType type, uint64_t host_mem, const VerifyOptions& verify = {}) {
    options.draft.type = type;
    options.verify = verify;
    options.device.host_mem_bytes = host_mem;
    try {
      return engine().plan(kPrompt, {.max_tokens = 20});
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
      return std::nullopt;
    }
  }
  uint64_t least(SpecType type, const VerifyOptions& verify = {}) {
    uint64_t low = kMiB, high = 64 * kMiB;
    while (high - low > kPageBytes) (plan_at(type, low / 2 + high / 2, verify) ? high : low) = low / 2 + high / 2;
    return high;
  }
  void expect_plan(uint64_t host_mem, const VerifyOptions& asked, const char* draft, VerifyMode mode,
                   const char* note) {
    const std::optional<RunPlan> plan = plan_at(SpecType::kAuto, host_mem, asked);
    ASSERT_TRUE(plan.has_value()) << note;
    EXPECT_EQ(plan->draft, draft) << note;
    EXPECT_EQ(plan->verify, mode) << note;
    EXPECT_EQ(plan->memory_note.empty(), *note == '\0') << plan->memory_note;
    EXPECT_NE(plan->memory_note.find(note), std::string::npos) << plan->memory_note;
  }

  Engine engine() const {
    Shape shape = find_shape(testing::tiny_model("qwen35") + "/config.json");
    shape.config.max_positions = 16384;  // blocks serve such a context
    return Engine(options, make_random_checkpoint(shape.name, shape.config, 0));
  }

  static constexpr int64_t kPrompt = 8000;
  EngineOptions options = tiny("qwen35");
};

TEST_F(TheUsualDraft, GivesWayWhereItDoesNotFit) {
  const VerifyOptions full{.mode = VerifyMode::kFull};
  const uint64_t plain = least(SpecType::kNone), whole = least(SpecType::kMtp, full), drafts = least(SpecType::kMtp);
  ASSERT_LT(plain + 2 * kPageBytes, whole);
  ASSERT_LT(whole + 2 * kPageBytes, drafts);
  expect_plan(drafts, {}, "draft-mtp", VerifyMode::kLossless, "");
  expect_plan(drafts - 2 * kPageBytes, {}, "draft-mtp", VerifyMode::kFull, "no room for partial verification");
  expect_plan(whole, {}, "draft-mtp", VerifyMode::kFull, "--verify full");
  expect_plan(whole - 2 * kPageBytes, {}, "", VerifyMode::kFull, "no room for the draft draft-mtp");
  expect_plan(plain, {}, "", VerifyMode::kFull, "no room for the draft draft-mtp");
  expect_plan(whole, full, "draft-mtp", VerifyMode::kFull, "");
  EXPECT_FALSE(plan_at(SpecType::kAuto, plain - 2 * kPageBytes).has_value());
  options.device.host_mem_bytes = plain;
  options.draft.tree = chain_shape(3);  // of a draft that the file has
  const GenerateResult result =
      engine().generate(testing::made_up_ids(kPrompt, 320), {.max_tokens = 20, .ignore_eos = true}, nullptr);
  EXPECT_EQ(result.speculation.type, "");
  EXPECT_EQ(result.timings.decode_tokens, 19);
  EXPECT_NE(result.memory_note.find("no room for the draft draft-mtp"), std::string::npos) << result.memory_note;
}

// A copy that is asked for stays when the draft goes, and is made without a draft, too.
TEST_F(TheUsualDraft, LeavesPartialStepsThatAreAskedFor) {
  const VerifyOptions copy{.partial = PartialKind::kInt8};
  const uint64_t drafts = least(SpecType::kMtp, copy);
  expect_plan(drafts, copy, "draft-mtp", VerifyMode::kLossless, "");
  expect_plan(drafts - 2 * kPageBytes, copy, "", VerifyMode::kLossless, "no room for the draft draft-mtp");
  options = tiny();
  options.draft.type = SpecType::kAuto;
  options.verify = copy;
  options.verify.mode = VerifyMode::kAuto;
  EXPECT_EQ(Engine(options).plan(100, {}).verify, VerifyMode::kLossless);
}

TEST(Engine, NoTokensAreNoTokens) {
  Engine engine(tiny());
  const GenerateResult result = engine.generate({5, 6}, {.max_tokens = 0}, nullptr);
  EXPECT_TRUE(result.token_ids.empty());
  EXPECT_EQ(result.finish_reason, FinishReason::kLength);
}

TEST(Engine, FillsTheContextAndNoMore) {
  EngineOptions options = tiny();
  options.ctx_size = 100;
  Engine engine(options);
  for (const int64_t max_tokens : {int64_t{-1}, int64_t{1000}}) {
    const GenerateResult result =
        engine.generate(testing::made_up_ids(60, 512), {.max_tokens = max_tokens, .ignore_eos = true}, nullptr);
    EXPECT_EQ(result.token_ids.size(), 40u);
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  }
}

// A greedy run that meets an end token: end_ids are the model's; here, whatever the third token is is made one by
// choosing the seed-free greedy run of a model whose eos (2) comes up. If none comes up, --ignore-eos must change
// nothing.
TEST(Engine, IgnoreEosOnlyGoesOn) {
  Engine engine(tiny());
  bool stopped = false;
  for (uint64_t seed = 0; seed < 60 && !stopped; ++seed) {
    GenerateOptions run{.max_tokens = 40, .sampling = {.temperature = 3.0f, .seed = seed}};
    const GenerateResult with = engine.generate(testing::made_up_ids(8, 512), run, nullptr);
    run.ignore_eos = true;
    const GenerateResult without = engine.generate(testing::made_up_ids(8, 512), run, nullptr);
    EXPECT_EQ(without.token_ids.size(), 40u);
    EXPECT_EQ(with.token_ids,
              std::vector<int32_t>(without.token_ids.begin(),
                                   without.token_ids.begin() + static_cast<long>(with.token_ids.size())));
    if (with.finish_reason == FinishReason::kStop) {
      stopped = true;
      EXPECT_EQ(without.token_ids[with.token_ids.size()], 2);  // the config's eos_token_id
    }
  }
  EXPECT_TRUE(stopped) << "no seed met the end token: the test says nothing";
}

TEST(Engine, TheSameSeedSaysTheSameAndAnotherDoesNot) {
  Engine engine(tiny());
  GenerateOptions run{.max_tokens = 30, .sampling = {.temperature = 1.0f, .seed = 1}, .ignore_eos = true};
  const std::vector<int32_t> prompt = testing::made_up_ids(20, 512);
  const std::vector<int32_t> first = engine.generate(prompt, run, nullptr).token_ids;
  EXPECT_EQ(engine.generate(prompt, run, nullptr).token_ids, first);
  run.sampling.seed = 2;
  EXPECT_NE(engine.generate(prompt, run, nullptr).token_ids, first);
}

TEST(Engine, AnInterruptEndsTheRunWithWhatThereIs) {
  Engine engine(tiny());
  std::atomic<bool> interrupt = true;
  GenerateOptions run{.max_tokens = 50, .ignore_eos = true, .interrupt = &interrupt};
  const GenerateResult before = engine.generate(testing::made_up_ids(600, 512), run, nullptr);
  EXPECT_EQ(before.finish_reason, FinishReason::kInterrupted);
  EXPECT_TRUE(before.token_ids.empty());
  EXPECT_EQ(before.timings.ttft_ms, 0);  // there is no first token to time
  EXPECT_EQ(before.timings.prefill_tokens_per_s, 0);

  class Stop : public RecordedProgress {
   public:
    explicit Stop(std::atomic<bool>* flag) : flag_(flag) {}
    void update(int64_t done) override {
      if (stages.back() == "decode" && done == 5) flag_->store(true);
    }

   private:
    std::atomic<bool>* flag_;
  };
  interrupt = false;
  Stop stop(&interrupt);
  const GenerateResult within = engine.generate(testing::made_up_ids(20, 512), run, &stop);
  EXPECT_EQ(within.finish_reason, FinishReason::kInterrupted);
  EXPECT_EQ(within.token_ids.size(), 5u);
}

// What is thrown in the middle of prefill comes out as it is, with every stream drained before its memory goes (ASan
// sees it otherwise), and the engine is good for another run.
TEST(Engine, AnErrorInPrefillLeavesTheEngineWhole) {
  class Throws : public RecordedProgress {
   public:
    void update(int64_t) override {
      if (stages.back() == "prefill") throw_error(ExitCode::kStorage, "progress", "the terminal went away");
    }
  };
  for (const KvMode mode : {KvMode::kDevice, KvMode::kHost}) {
    EngineOptions options = tiny();
    options.kv = mode;
    Engine engine(options);
    const std::vector<int32_t> prompt = testing::made_up_ids(1500, 512);
    Throws progress;
    expect_error(ExitCode::kStorage, "went away", [&] { engine.generate(prompt, {}, &progress); });
    EXPECT_EQ(engine.generate(prompt, {.max_tokens = 4, .ignore_eos = true}, nullptr).token_ids.size(), 4u);
  }
}

// Also while the cache's host memory is being taken beside them.
TEST(Engine, AnInterruptIsHeardWhileWeightsLoad) {
  EngineOptions options = tiny();
  options.kv = KvMode::kHost;
  Engine engine(options);
  std::atomic<bool> interrupt = true;
  RecordedProgress progress;
  GenerateOptions run{.max_tokens = 4, .ignore_eos = true, .interrupt = &interrupt};
  const std::vector<int32_t> prompt = testing::made_up_ids(1500, 512);
  EXPECT_EQ(engine.generate(prompt, run, &progress).finish_reason, FinishReason::kInterrupted);
  EXPECT_EQ(progress.stages, std::vector<std::string>{"loading weights"});
  interrupt = false;
  EXPECT_EQ(engine.generate(prompt, run, &progress).token_ids.size(), 4u);
}

TEST(Engine, AnErrorWhileWeightsLoadLeavesTheEngineWhole) {
  class Throws : public RecordedProgress {
   public:
    void update(int64_t) override { throw_error(ExitCode::kStorage, "progress", "the terminal went away"); }
  };
  EngineOptions options = tiny();
  options.kv = KvMode::kHost;
  Engine engine(options);
  const std::vector<int32_t> prompt = testing::made_up_ids(1500, 512);
  Throws progress;
  expect_error(ExitCode::kStorage, "went away", [&] { engine.generate(prompt, {}, &progress); });
  const GenerateResult result = engine.generate(prompt, {.max_tokens = 4, .ignore_eos = true}, nullptr);
  EXPECT_EQ(result.token_ids.size(), 4u);
  EXPECT_GT(result.timings.host_memory_ms, 0);
}

TEST(Engine, ReportsProgressStageByStage) {
  RecordedProgress progress;
  Engine engine(tiny());
  engine.generate(testing::made_up_ids(600, 512), {.max_tokens = 5, .ignore_eos = true}, &progress);
  EXPECT_EQ(progress.stages, (std::vector<std::string>{"loading weights", "prefill", "decode"}));
  EXPECT_EQ(progress.ends, 3);
  EXPECT_GT(progress.updates, 10);
}

TEST(Engine, RefusesPromptsThatItCannotAnswer) {
  EngineOptions options = tiny();
  options.ctx_size = 50;
  Engine engine(options);
  expect_error(ExitCode::kBadInput, "empty", [&] { engine.generate({}, {}, nullptr); });
  expect_error(ExitCode::kBadInput, "has 50 tokens, the context holds 50",
               [&] { engine.generate(testing::made_up_ids(50, 512), {}, nullptr); });
  expect_error(ExitCode::kBadInput, "token id 512", [&] { engine.generate({1, 512}, {}, nullptr); });
  expect_error(ExitCode::kBadInput, "token id -1", [&] { engine.generate({-1}, {}, nullptr); });
  EXPECT_EQ(engine.generate(testing::made_up_ids(49, 512), {.ignore_eos = true}, nullptr).token_ids.size(), 1u);
}

TEST(Engine, RefusesAContextBeyondTheModels) {
  EngineOptions options = tiny();
  options.ctx_size = 2049;
  expect_error(ExitCode::kUsage, "2049 is more than the 2048 positions", [&] { Engine engine(options); });
}

// llama-linear has theta 10,000, linear scaling by 4 and 2,048 positions.
TEST(Engine, RopeFlagsTakeThePlaceOfTheModelsOwn) {
  const std::vector<int32_t> prompt = testing::made_up_ids(100, 512);
  const auto say = [&](const RopeOverrides& rope) {
    EngineOptions options = tiny("llama-linear");
    options.rope = rope;
    Engine engine(options);
    return engine.generate(prompt, {.max_tokens = 40, .ignore_eos = true}, nullptr).token_ids;
  };
  const std::vector<int32_t> own = say({});
  EXPECT_EQ(say({.scaling = RopeScaling::kLinear, .factor = 4}), own);
  EXPECT_EQ(say({.theta = 10000}), own);
  EXPECT_NE(say({.factor = 2}), own);
  EXPECT_NE(say({.theta = 500000}), own);
  EXPECT_NE(say({.scaling = RopeScaling::kYarn, .factor = 4, .original_positions = 64}), own);
}

TEST(Engine, RopeScaleGrowsTheContext) {
  ModelConfig config;
  config.max_positions = 8192;
  EXPECT_EQ(with_rope(config, {.scaling = RopeScaling::kLinear, .factor = 8}).max_positions, 65536);
  const ModelConfig yarn = with_rope(config, {.scaling = RopeScaling::kYarn, .factor = 4});
  EXPECT_EQ(yarn.max_positions, 32768);
  EXPECT_EQ(yarn.rope.original_max_positions, 8192);
  EXPECT_EQ(with_rope(config, {.theta = 2e6}).rope.theta, 2e6);
  EXPECT_EQ(with_rope(config, {}).max_positions, 8192);
  config.rope.query_beta = 0.1;
  config.rope.query_step = 64;
  const RopeConfig scaled = with_rope(config, {.scaling = RopeScaling::kYarn, .factor = 4}).rope;
  EXPECT_EQ(scaled.query_beta, 0.1);  // no part of the scaling
  EXPECT_EQ(scaled.query_step, 64);
  expect_error(ExitCode::kUsage, "--rope-scale", [&] { with_rope(config, {.factor = 2}); });
  expect_error(ExitCode::kUsage, "too many",
               [&] { with_rope(config, {.scaling = RopeScaling::kLinear, .factor = 1e9}); });
  expect_error(ExitCode::kUsage, "--yarn-orig-ctx: 64", [&] { with_rope(config, {.original_positions = 64}); });
  expect_error(ExitCode::kUsage, "--rope-freq-base: 1 must be above 1",
               [&] { with_rope(config, {.scaling = RopeScaling::kYarn, .theta = 1}); });
  config.rope.theta = 0.5;
  expect_error(ExitCode::kUsage, "--rope-scaling: yarn needs a base above 1; the model's is 0.5",
               [&] { with_rope(config, {.scaling = RopeScaling::kYarn}); });
}

TEST(Engine, RefusesBudgetsBeforeAnyWork) {
  EngineOptions options = tiny();
  options.device.vram_bytes = 100 * kKiB;
  const Error weights = expect_error(ExitCode::kDoesNotFit, "weights", [&] { Engine engine(options); });
  EXPECT_EQ(weights.info().where, "--vram");
  options.device.vram_bytes = 4 * kMiB;
  options.weights_place = WeightsPlace::kDevice;
  Engine engine(options);
  RecordedProgress progress;  // on the engine's first run: not even the weights are loaded
  expect_error(ExitCode::kDoesNotFit, "for a context of",
               [&] { engine.generate(testing::made_up_ids(1900, 512), {}, &progress); });
  EXPECT_TRUE(progress.stages.empty()) << "work was done before the refusal";
  EXPECT_EQ(
      engine.generate(testing::made_up_ids(20, 512), {.max_tokens = 3, .ignore_eos = true}, nullptr).token_ids.size(),
      3u);  // a refusal leaves the engine whole
}

// Weights are loaded through buffers that are gone before the run has its own memory: where there is room for smaller
// ones alone they are smaller, and what was planned to fit does.
TEST(Engine, LoadsWeightsThroughWhatRoomThereIs) {
  EngineOptions options = tiny();
  const GenerateOptions run{.max_tokens = 3, .ignore_eos = true};
  const std::vector<int32_t> prompt = testing::made_up_ids(20, 512);
  const GenerateResult roomy = Engine(options).generate(prompt, run, nullptr);
  const uint64_t weights = whole_pages(roomy.memory.weights_bytes);
  const uint64_t least = weights + roomy.plan.vram_bytes + roomy.plan.host_total_bytes;
  ASSERT_LT(least, 3 * weights) << "two buffers as large as all weights have room";
  options.device.host_mem_bytes = least;
  EXPECT_EQ(Engine(options).generate(prompt, run, nullptr).token_ids, roomy.token_ids);
}

TEST(Engine, CountsWhatCrossesTheLink) {
  EngineOptions options = tiny();
  options.kv = KvMode::kHost;
  Engine engine(options);
  engine.generate({5, 6}, {.max_tokens = 1}, nullptr);  // loads the weights, whose staging counts too
  const GenerateResult result =
      engine.generate(testing::made_up_ids(1030, 512), {.max_tokens = 11, .ignore_eos = true}, nullptr);
  const uint64_t two_segments = 4 * 1024 * 256;                     // layers x rows x bytes a row
  EXPECT_EQ(result.transfers.prefill_d2h_bytes, two_segments + 4);  // and the first token
  EXPECT_GE(result.transfers.decode_h2d_bytes, 10 * two_segments);
  EXPECT_LT(result.transfers.decode_h2d_bytes, 12 * two_segments);
  EXPECT_GE(result.memory.host_peak_bytes,
            result.memory.kv_bytes);  // the host tier alone, though the CPU is the device
  EXPECT_LT(result.memory.host_peak_bytes, result.memory.kv_bytes + kMiB);
}

}  // namespace
}  // namespace headrace
