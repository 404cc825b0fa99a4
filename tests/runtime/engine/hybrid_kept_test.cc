// What a run of a model with recurrent states leaves to the next one: rows up to a snapshot of the states. The next run
// begins at the last snapshot within the tokens that both prompts share, and has the bits of a fresh run.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <tuple>

#include "cache/minimum_budgets.h"
#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/stops_at.h"
#include "tests/support/turns.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::Session;
using testing::talk;
using testing::Turns;

constexpr int32_t kTinyVocab = 320;
constexpr int64_t kGpuGroup = 512;  // of prefill on a GPU, where it is not in 8 bits

class HybridKept : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  EngineOptions options() const {
    const auto& [device, rows] = GetParam();
    EngineOptions o;
    o.model = testing::tiny_model("qwen35");
    o.device = {.choice = device, .threads = 2};
    o.want_tokenizer = false;
    o.dtype = testing::weights_type(rows);
    o.cache_type_k = o.cache_type_v = rows;
    o.prefill = rows.prefill();
    o.prefill_group = kGpuGroup;
    return o;
  }
  static GenerateOptions keeping(KeepRows keep, int64_t tokens = 4096) {
    return {.max_tokens = 30,
            .keep = keep,
            .keep_tokens = tokens,
            .sampling = {.temperature = 0.8f, .seed = 3},
            .ignore_eos = true};
  }
  // Where snapshots may be if a run has the bits of a fresh one.
  int64_t unit() const {
    const auto& [device, rows] = GetParam();
    return device == DeviceChoice::kCpu || rows.prefill_int8 ? kPrefixTile : kGpuGroup;
  }
  // The last snapshot of a prompt of so many tokens.
  int64_t last(int64_t tokens) const { return (tokens - 16) / unit() * unit(); }

  GenerateResult expect_fresh(Engine& engine, const std::vector<int32_t>& prompt, GenerateOptions run) {
    GenerateResult result = engine.generate(prompt, run, nullptr);
    run.keep = KeepRows::kNone;
    Engine fresh(options());
    EXPECT_EQ(result.token_ids, fresh.generate(prompt, run, nullptr).token_ids) << prompt.size() << " tokens";
    return result;
  }
};

std::vector<int32_t> continued(const std::vector<int32_t>& first, int64_t common, int64_t more, uint32_t seed) {
  std::vector<int32_t> ids(first.begin(), first.begin() + common);
  const std::vector<int32_t> rest = testing::made_up_ids(more, kTinyVocab, seed);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

// The logits, not the text: before, at and between the snapshots of a prompt whose last multiples of 2,048 they are.
TEST_P(HybridKept, RunsHaveTheBitsOfFreshOnes) {
  const LoadedModel model(testing::tiny_model("qwen35"), std::get<1>(GetParam()), std::get<0>(GetParam()));
  constexpr int64_t kFirst = 4400, kMost = 5200;
  const std::vector<int32_t> first = testing::made_up_ids(kFirst, kTinyVocab);
  std::vector<int64_t> cuts = {2048, 3000, 4095, 4351, 4352, 4400};
  if (testing::kSanitized) cuts = {3000, 4400};
  for (const int64_t common : cuts) {
    const int64_t near = common / 2048 * 2048, kept = common >= last(kFirst) ? last(kFirst) : near;
    const std::vector<int32_t> second = continued(first, common, common % 2 == 0 ? 37 : 700, 77);
    SessionOptions options = model.options(static_cast<int64_t>(second.size()), 12);
    options.prefill_group = kGpuGroup;
    std::vector<std::vector<float>> fresh, following;
    testing::decode_plainly(*model.session(options), second, 4, &fresh);
    options.context_tokens = options.most_prompt_tokens = kMost;
    options.snapshot_unit = unit();
    options.prompt_tokens = kFirst;
    const std::unique_ptr<Session> before = model.session(options);
    testing::decode_plainly(*before, first, 4);
    ASSERT_NE(before->snapshots(), nullptr);
    EXPECT_EQ(before->snapshots()->last(common), kept) << common;
    options.prompt_tokens = static_cast<int64_t>(second.size());
    options.kept_rows = kept;
    KeptState state = before->release();
    Session session(
        {.layout = SessionLayout(*model.device, *model.compute, model.checkpoint->config(), model.weights, options),
         .memory = before->plan()},
        std::move(state));
    testing::decode_plainly(session, second, 4, &following);
    EXPECT_EQ(following, fresh) << "the first " << common;
  }
}

TEST_P(HybridKept, ATextIsThatOfAFreshRun) {
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    GenerateOptions run = keeping(KeepRows::kPrompt);
    run.kv = kv;
    Engine engine(options());
    const Turns turns = talk(engine, run);
    // The fourth prompt goes on after token 500 of the first one: no snapshot is before it.
    EXPECT_EQ(turns.kept, (std::vector<int64_t>{0, last(1030), last(1081), 0, last(525)}));
    run.keep = KeepRows::kNone;
    for (size_t i = 0; i < turns.prompts.size(); ++i) {
      EXPECT_EQ(engine.generate(turns.prompts[i], run, nullptr).token_ids, turns.answers[i]) << "turn " << i;
    }
  }
}

// As in a chat whose template drops what the model has thought: the next prompt parts from the one before within the
// generation prompt, and has another answer. Rows of answers went through the recurrence and are read again.
TEST_P(HybridKept, AChatWhoseAnswersAreChanged) {
  Engine engine(options());
  const GenerateOptions run = keeping(KeepRows::kAll);
  const bool exact = unit() == kPrefixTile;  // a GPU's groups begin elsewhere, so its bits are those of the turns
  std::vector<int32_t> prompt = testing::made_up_ids(300, kTinyVocab);
  int64_t before = 0;
  for (uint32_t turn = 0; turn < 5; ++turn) {
    const GenerateResult result = exact ? expect_fresh(engine, prompt, run) : engine.generate(prompt, run, nullptr);
    EXPECT_EQ(result.kept_tokens, before) << turn;
    before = (static_cast<int64_t>(prompt.size()) - 16) / kPrefixTile * kPrefixTile;
    prompt = continued(prompt, static_cast<int64_t>(prompt.size()) - 7, 150 + 90 * turn, turn + 20);
  }
}

// All of a prompt and its answer, continued: its last snapshot is still the prompt's.
TEST_P(HybridKept, AnAnswerIsReadAgain) {
  Engine engine(options());
  const GenerateOptions run = keeping(KeepRows::kAll);
  std::vector<int32_t> prompt = testing::made_up_ids(700, kTinyVocab);
  const GenerateResult first = engine.generate(prompt, run, nullptr);
  prompt.insert(prompt.end(), first.token_ids.begin(), first.token_ids.end());
  prompt.insert(prompt.end(), 200, 5);
  EXPECT_EQ(engine.generate(prompt, run, nullptr).kept_tokens, (700 - 16) / kPrefixTile * kPrefixTile);
}

TEST_P(HybridKept, OldSnapshotsServeAPromptThatGoesBack) {
  Engine engine(options());
  const GenerateOptions run = keeping(KeepRows::kPrompt);
  const std::vector<int32_t> first = testing::made_up_ids(2300, kTinyVocab), longer = continued(first, 2300, 600, 4);
  engine.generate(first, run, nullptr);
  EXPECT_EQ(expect_fresh(engine, longer, run).kept_tokens, last(2300));
  EXPECT_EQ(expect_fresh(engine, continued(first, 2299, 300, 8), run).kept_tokens, last(2300))
      << "from two runs before";
  EXPECT_EQ(expect_fresh(engine, continued(first, 2100, 300, 9), run).kept_tokens, 2048);
  EXPECT_EQ(expect_fresh(engine, continued(first, 2047, 300, 9), run).kept_tokens, 0);
  EXPECT_EQ(expect_fresh(engine, testing::made_up_ids(900, kTinyVocab, 5), run).kept_tokens, 0) << "another prompt";
  EXPECT_EQ(expect_fresh(engine, testing::made_up_ids(900, kTinyVocab, 5), run).kept_tokens, last(900));
  EXPECT_EQ(expect_fresh(engine, testing::made_up_ids(70, kTinyVocab, 6), run).kept_tokens, 0) << "too short for one";
  EXPECT_EQ(expect_fresh(engine, testing::made_up_ids(70, kTinyVocab, 6), run).kept_tokens, 0);
}

TEST_P(HybridKept, AnInterruptedRunLeavesThemAsTheyWere) {
  GenerateOptions run = keeping(KeepRows::kPrompt);
  Engine engine(options());
  const std::vector<int32_t> first = testing::made_up_ids(1100, kTinyVocab), longer = continued(first, 1100, 1900, 9);
  engine.generate(first, run, nullptr);
  std::atomic<bool> flag{false};
  struct StopsInPrefill : Progress {
    explicit StopsInPrefill(std::atomic<bool>* to) : flag(to) {}
    void begin(std::string_view, std::string_view, int64_t) override {}
    void update(int64_t done) override {
      if (done > 2000) flag->store(true);  // some layers are done
    }
    void end() override {}
    std::atomic<bool>* flag;
  } progress(&flag);
  run.interrupt = &flag;
  const GenerateResult cut = engine.generate(longer, run, &progress);
  EXPECT_EQ(cut.finish_reason, FinishReason::kInterrupted);
  EXPECT_EQ(cut.kept_tokens, last(1100));
  flag = false;
  testing::StopsAt in_decode(7, &flag);
  const GenerateResult part = engine.generate(longer, run, &in_decode);
  EXPECT_EQ(part.kept_tokens, last(1100));
  EXPECT_EQ(part.finish_reason, FinishReason::kInterrupted);
  flag = false;
  const GenerateResult whole = expect_fresh(engine, longer, run);
  EXPECT_EQ(whole.kept_tokens, last(3000));
  EXPECT_TRUE(std::equal(part.token_ids.begin(), part.token_ids.end(), whole.token_ids.begin()));
}

TEST_P(HybridKept, LookUpChangesNoText) {
  EngineOptions drafting = options();
  drafting.draft.type = SpecType::kNgram;
  Engine plain(options()), drafts(drafting);
  const GenerateOptions run = keeping(KeepRows::kAll);
  const std::vector<int32_t> first = testing::repeated_ids(800, kTinyVocab);
  for (const std::vector<int32_t>& prompt : {first, continued(first, 795, 200, 3)}) {
    EXPECT_EQ(drafts.generate(prompt, run, nullptr).token_ids, plain.generate(prompt, run, nullptr).token_ids);
  }
}

// Their memory is in the plan, which is kept to.
TEST_P(HybridKept, SnapshotsAreInThePlan) {
  const LoadedModel model(testing::tiny_model("qwen35"), std::get<1>(GetParam()), std::get<0>(GetParam()));
  const std::vector<int32_t> prompt = testing::made_up_ids(7000, kTinyVocab);
  SessionOptions options = model.options(7000, 10);
  const auto layout = [&] {
    return SessionLayout(*model.device, *model.compute, model.checkpoint->config(), model.weights, options);
  };
  const uint64_t without = layout().plan_input().pinned_work_bytes;
  options.most_prompt_tokens = options.context_tokens;
  const RecurrentShape shape = recurrent_shape(model.checkpoint->config(), model.weights.dtype());
  const uint64_t snapshots = static_cast<uint64_t>(most_snapshots(7010)) * StateSnapshots::bytes(shape);
  const uint64_t with = layout().plan_input().pinned_work_bytes;
  EXPECT_GE(with, without + snapshots);
  EXPECT_LE(with, without + snapshots + 64 * kKiB);  // tables of segments, one a layer

  MemoryBudget& host = model.device->host_mem();
  const uint64_t before = host.used_bytes();
  host.reset_peak();
  const std::unique_ptr<Session> session = model.session(options);
  testing::decode_plainly(*session, prompt, 2);
  const bool shared = model.device->backend() == Backend::kCpu;  // device memory is host memory
  EXPECT_LE(host.peak_bytes() - before, session->plan().host_total_bytes + (shared ? session->plan().vram_bytes : 0));
}

// Where host memory has no room for all of them, runs that share rows have fewer, and their texts stay.
TEST(HybridKeptRoom, FewerSnapshotsAreKeptWhereHostMemoryIsShort) {
  Shape shape = find_shape(testing::tiny_model("qwen35") + "/config.json");
  shape.config.max_positions = 131072;
  EngineOptions options;
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  options.want_tokenizer = false;
  const std::vector<int32_t> prompt = testing::made_up_ids(5000, kTinyVocab);
  const GenerateOptions run{.max_tokens = 6, .keep = KeepRows::kPrompt, .keep_tokens = 100000, .ignore_eos = true};
  const auto engine = [&](uint64_t host_mem) {
    options.device.host_mem_bytes = host_mem;
    return std::make_unique<Engine>(options, make_random_checkpoint("tiny", shape.config, 3), nullptr);
  };
  const auto expected = engine(kGiB)->generate(prompt, run, nullptr);
  const RunPlan most = engine(kGiB)->plan(5000, run);
  const uint64_t one = StateSnapshots::bytes(recurrent_shape(shape.config, DType::kBF16));
  const uint64_t need = most.weights_bytes + most.memory.vram_bytes + most.memory.host_total_bytes + 64 * kKiB;
  const uint64_t spared = static_cast<uint64_t>(most_snapshots(100000) - kLeastSnapshots) * one;
  for (const uint64_t less : {one, spared}) {
    const std::unique_ptr<Engine> tight = engine(need - less);
    const RunPlan plan = tight->plan(5000, run);
    EXPECT_LE(plan.memory.host_total_bytes + less, most.memory.host_total_bytes + 64 * kKiB);
    EXPECT_EQ(tight->generate(prompt, run, nullptr).token_ids, expected.token_ids);
    std::vector<int32_t> next = prompt;  // the next question begins at the last snapshot
    next.resize(4900);
    const GenerateResult again = tight->generate(next, run, nullptr);
    EXPECT_EQ(again.kept_tokens, 4096);
  }
  EXPECT_THROW(engine(need - spared - 2 * one)->plan(5000, run), DoesNotFit);
}

INSTANTIATE_TEST_SUITE_P(, HybridKept,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::ValuesIn(testing::types_to_share())),
                         testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
