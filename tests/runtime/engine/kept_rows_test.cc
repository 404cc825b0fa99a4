// Rows of the KV cache that a run leaves to the next one: that one computes only what is new, and says what it would
// have said. Where only rows of prompts are kept, a run has the bits of a fresh one; where all are, the text does not
// depend on where the rows are, nor on a draft or partial verification (every_draft_test has the table of those).
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>

#include "runtime/engine/engine.h"
#include "tests/support/file_faults.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"
#include "tests/support/spill.h"
#include "tests/support/stops_at.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/turns.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::Session;
using testing::talk;
using testing::Turns;

constexpr int64_t kCapacity = 2040;

class KeptRows : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  EngineOptions options() const {
    EngineOptions o;
    o.model = testing::tiny_model("llama31");
    o.device = {.choice = std::get<0>(GetParam()), .threads = 2};
    o.want_tokenizer = false;
    const testing::RowsType type = std::get<1>(GetParam());
    o.dtype = testing::weights_type(type);
    o.prefill = type.prefill();
    if (low_bit(type)) o.cache_type_k = o.cache_type_v = type;
    o.ring.slots = 2;
    o.ring.slot_bytes = 64 * kKiB;
    o.prefill_group = 512;
    return o;
  }
  static GenerateOptions keeping(KeepRows keep) {
    return {.max_tokens = 40,
            .kv = KvMode::kDevice,
            .keep = keep,
            .keep_tokens = kCapacity,
            .sampling = {.temperature = 0.8f, .seed = 3},
            .ignore_eos = true};
  }
  bool cpu() const { return std::get<0>(GetParam()) == DeviceChoice::kCpu; }
  int64_t unit(int64_t rows) const { return cpu() || std::get<1>(GetParam()).prefill_int8 ? rows : rows / 512 * 512; }
};

// All but the last token of an answer, of the text that the next prompt begins with.
TEST_P(KeptRows, AreAllThatARunHasComputed) {
  Engine engine(options());
  const Turns turns = talk(engine, keeping(KeepRows::kAll));
  EXPECT_EQ(turns.kept, (std::vector<int64_t>{0, 1069, 1130, 500, 564}));
}

TEST_P(KeptRows, ATextDoesNotDependOnWhereTheyAre) {
  GenerateOptions run = keeping(KeepRows::kAll);
  Engine engine(options());
  const Turns device = talk(engine, run);
  run.kv = KvMode::kHost;
  EXPECT_EQ(talk(engine, run), device);
  run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8};
  if (std::get<1>(GetParam()) != DType::kInt8) {
    EXPECT_EQ(talk(engine, run), device) << "a copy";
  }
  run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .budget = 64, .interval = 20};
  EXPECT_EQ(talk(engine, run), device) << "blocks";
}

TEST_P(KeptRows, OnADiskToo) {
  GenerateOptions run = keeping(KeepRows::kAll);
  EngineOptions opened = options();
  opened.dtype = DType::kBF16;
  opened.cache_type_k = opened.cache_type_v = std::get<1>(GetParam());
  uint64_t host_bytes = 0;
  Turns device;
  {
    Engine engine(opened);
    device = talk(engine, run);
    run.kv = KvMode::kHost;
    const RunPlan plan = Engine(opened).plan(1030, run);
    const Backend backend = engine.device().backend();
    host_bytes = (backend == Backend::kCpu ? plan.weights_bytes + 64 * kKiB : 0) +
                 testing::host_bytes_for(plan.memory, backend, 0.9, 2 * 512 * 256);
  }
  const TemporaryFolder folder;
  opened.spill = {.folder = folder.path(), .slots = 2};
  opened.device.host_mem_bytes = host_bytes;
  Engine engine(opened);
  EXPECT_EQ(talk(engine, run), device);
  std::vector<int32_t> text = testing::made_up_ids(1600, 512);
  engine.generate(text, run, nullptr);
  text.resize(1500);
  const std::vector<int32_t> more = testing::made_up_ids(60, 512, 5);
  text.insert(text.end(), more.begin(), more.end());
  const GenerateResult last = engine.generate(text, run, nullptr);
  EXPECT_EQ(last.kept_tokens, 1500);
  EXPECT_GT(last.plan.disk_bytes, 0u);
  EXPECT_GT(last.spill.file.read_bytes, 0u);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// Each layer's kept rows are read once, also where rows of the same layer are written in between.
TEST_P(KeptRows, AreReadFromADiskOnce) {
  GenerateOptions run = keeping(KeepRows::kAll);
  run.kv = KvMode::kHost;
  EngineOptions opened = options();
  opened.dtype = DType::kBF16;
  opened.cache_type_k = opened.cache_type_v = std::get<1>(GetParam());
  {
    const Engine engine(opened);
    const RunPlan plan = engine.plan(1030, run);
    opened.device.host_mem_bytes = (cpu() ? plan.weights_bytes + 64 * kKiB : 0) +
                                   testing::host_bytes_for(plan.memory, engine.device().backend(), 0.9, 2 * 512 * 256);
  }
  const TemporaryFolder folder;
  opened.spill = {.folder = folder.path(), .slots = 2};
  std::map<uint64_t, int> reads;  // by offset
  uint64_t bytes = 0;
  const testing::ScriptedFaults faults({}, [&](uint64_t offset, std::span<std::byte> data) {
    ++reads[offset];
    bytes += data.size();
  });
  constexpr int64_t kKept = 1500;         // all rows are kept, so that a GPU too begins behind any of them
  for (const int64_t more : {490, 20}) {  // seals a segment on disk in each layer, or none
    Engine engine(opened);
    std::vector<int32_t> text = testing::made_up_ids(1600, 512);
    run.max_tokens = 2;
    engine.generate(text, run, nullptr);
    text.resize(kKept);
    const std::vector<int32_t> added = testing::made_up_ids(more, 512, 5);
    text.insert(text.end(), added.begin(), added.end());
    reads.clear();
    bytes = 0;
    run.max_tokens = 1;  // prefill alone: steps read the disk again
    const GenerateResult last = engine.generate(text, run, nullptr);
    EXPECT_EQ(last.kept_tokens, kKept);
    const int64_t kept_segments = segments_for(kKept);
    const DType type = std::get<1>(GetParam());
    const RowShape rows = row_shape(engine.config(), type, type, DType::kBF16);
    uint64_t expected = 0;
    for (int64_t i = last.plan.resident_segments; i < kept_segments; ++i) {
      if (last.plan.placement.tier(i) == Tier::kDisk) expected += segments_bytes(rows, i, i + 1);
    }
    EXPECT_GT(expected, 0u);
    EXPECT_EQ(bytes, expected * static_cast<uint64_t>(last.plan.host_layers)) << more;
    for (const auto& [offset, times] : reads) EXPECT_EQ(times, 1) << "at offset " << offset;
  }
}

// What a run was given ends with it: what it keeps has neither its callbacks nor its pointers.
TEST_P(KeptRows, KeepNothingElseOfTheirRun) {
  Engine engine(options());
  std::vector<int32_t> text = testing::made_up_ids(1100, 512);
  std::weak_ptr<int> of_the_request;
  {
    const auto owner = std::make_shared<int>(0);
    of_the_request = owner;
    const auto interrupt = std::make_unique<std::atomic<bool>>(false);
    GenerateOptions run = keeping(KeepRows::kPrompt);
    run.on_token = [owner](const AnswerToken&) {};
    run.on_text = [owner](std::string_view) {};
    run.interrupt = interrupt.get();
    engine.generate(text, run, nullptr);
  }
  EXPECT_TRUE(of_the_request.expired());
  text.push_back(9);
  EXPECT_EQ(engine.generate(text, keeping(KeepRows::kPrompt), nullptr).kept_tokens, unit(1101 - 16));
}

// With the rows of prompts alone every text is that of a fresh run.
TEST_P(KeptRows, OfPromptsGiveTheTextOfAFreshRun) {
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    GenerateOptions run = keeping(KeepRows::kPrompt);
    run.kv = kv;
    Engine engine(options());
    const Turns turns = talk(engine, run);
    EXPECT_EQ(turns.kept, (std::vector<int64_t>{0, unit(1030), unit(1091), unit(500), unit(525)}));
    run.keep = KeepRows::kNone;
    for (size_t i = 0; i < turns.prompts.size(); ++i) {
      EXPECT_EQ(engine.generate(turns.prompts[i], run, nullptr).token_ids, turns.answers[i]) << "turn " << i;
    }
  }
}

// The logits, not the text: of a session on the cache that another has left.
TEST_P(KeptRows, GiveTheBitsOfAFreshRun) {
  const LoadedModel model(testing::tiny_model("llama31"), std::get<1>(GetParam()), std::get<0>(GetParam()));
  const std::vector<int32_t> first = testing::made_up_ids(1700, 512);
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    for (const int64_t common : {64, 511, 512, 513, 1000, 1536, 1700}) {
      const int64_t kept = unit(common);
      if (kept == 0) continue;
      std::vector<int32_t> second(first.begin(), first.begin() + common);
      const std::vector<int32_t> more = testing::made_up_ids(common % 2 == 0 ? 37 : 700, 512, 77);
      second.insert(second.end(), more.begin(), more.end());
      SessionOptions options = model.options(static_cast<int64_t>(second.size()), 12);
      options.kv = kv;
      options.prefill_group = 512;
      std::vector<std::vector<float>> fresh, following;
      testing::decode_plainly(*model.session(options), second, 8, &fresh);
      options.context_tokens = kCapacity;
      options.most_prompt_tokens = kCapacity;
      options.prompt_tokens = 1700;
      const std::unique_ptr<Session> before = model.session(options);
      testing::decode_plainly(*before, first, 8);
      options.prompt_tokens = static_cast<int64_t>(second.size());
      options.kept_rows = kept;
      KeptState state = before->release();
      Session session(
          {.layout = SessionLayout(*model.device, *model.compute, model.checkpoint->config(), model.weights, options),
           .memory = before->plan()},
          std::move(state));
      testing::decode_plainly(session, second, 8, &following);
      EXPECT_EQ(following, fresh) << "the first " << common << ", --kv " << static_cast<int>(kv);
    }
  }
}

TEST_P(KeptRows, StayWhenARunIsInterrupted) {
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    GenerateOptions run = keeping(KeepRows::kPrompt);
    run.kv = kv;
    Engine engine(options());
    std::vector<int32_t> text = testing::made_up_ids(1100, 512);
    engine.generate(text, run, nullptr);
    const std::vector<int32_t> more = testing::made_up_ids(900, 512, 9);
    text.insert(text.end(), more.begin(), more.end());

    std::atomic<bool> flag{false};
    struct StopsInPrefill : Progress {
      explicit StopsInPrefill(std::atomic<bool>* to) : flag(to) {}
      void begin(std::string_view, std::string_view, int64_t) override {}
      void update(int64_t done) override {
        if (done > 1500) flag->store(true);  // some layers are stored
      }
      void end() override {}
      std::atomic<bool>* flag;
    } progress(&flag);
    run.interrupt = &flag;
    const GenerateResult cut = engine.generate(text, run, &progress);
    EXPECT_EQ(cut.finish_reason, FinishReason::kInterrupted);
    EXPECT_TRUE(cut.token_ids.empty());
    EXPECT_EQ(cut.kept_tokens, unit(1100));

    flag = false;
    testing::StopsAt in_decode(7, &flag);
    const GenerateResult part = engine.generate(text, run, &in_decode);
    EXPECT_EQ(part.kept_tokens, unit(1100));
    EXPECT_EQ(part.finish_reason, FinishReason::kInterrupted);
    run.interrupt = nullptr;
    const GenerateResult whole = engine.generate(text, run, nullptr);
    EXPECT_EQ(whole.kept_tokens, unit(2000 - 16));
    run.keep = KeepRows::kNone;
    EXPECT_EQ(engine.generate(text, run, nullptr).token_ids, whole.token_ids);
    EXPECT_TRUE(std::equal(part.token_ids.begin(), part.token_ids.end(), whole.token_ids.begin()));
    EXPECT_GE(part.token_ids.size(), 7u);
  }
}

TEST_P(KeptRows, GoWithOtherOptionsButNotWithOtherSampling) {
  Engine engine(options());
  GenerateOptions run = keeping(KeepRows::kPrompt);
  const std::vector<int32_t> text = testing::made_up_ids(1100, 512);
  engine.generate(text, run, nullptr);
  run.sampling.seed = 8;
  run.max_tokens = 20;
  const GenerateResult other = engine.generate(text, run, nullptr);
  EXPECT_EQ(other.kept_tokens, unit(1100 - 16));
  GenerateOptions fresh = run;
  fresh.keep = KeepRows::kNone;
  EXPECT_EQ(Engine(options()).generate(text, fresh, nullptr).token_ids, other.token_ids);
  run.kv = KvMode::kHost;
  EXPECT_EQ(engine.generate(text, run, nullptr).kept_tokens, 0);
  EXPECT_EQ(engine.generate(text, fresh, nullptr).kept_tokens, 0);
  EXPECT_EQ(engine.generate(text, run, nullptr).kept_tokens, 0) << "the run before kept nothing";
}

// A run may ask for another length. The plan is that of the first one, as long as the runs fit it.
TEST_P(KeptRows, AreOfARunThatTheNextOneFits) {
  Engine engine(options());
  GenerateOptions run = keeping(KeepRows::kPrompt);
  const std::vector<int32_t> text = testing::made_up_ids(1100, 512);
  run.keep_tokens = 1150;
  const GenerateResult first = engine.generate(text, run, nullptr);
  const std::vector<int32_t> shorter(text.begin(), text.begin() + 1090);
  run.keep_tokens = 1132;
  EXPECT_EQ(engine.generate(shorter, run, nullptr).kept_tokens, unit(1090 - 16));
  run.keep_tokens = 0;
  run.max_tokens = 50;
  const GenerateResult last = engine.generate(text, run, nullptr);
  EXPECT_EQ(last.kept_tokens, unit(1100 - 16)) << "1,150 tokens: just as many as the plan is for";
  EXPECT_EQ(last.token_ids.size(), 50u);
  EXPECT_EQ(last.plan.vram_bytes, first.plan.vram_bytes);
  run.keep = KeepRows::kNone;
  EXPECT_EQ(engine.generate(text, run, nullptr).token_ids, last.token_ids);

  run = keeping(KeepRows::kPrompt);
  run.keep_tokens = 1150;
  engine.generate(text, run, nullptr);
  run.keep_tokens = 0;
  run.max_tokens = 51;
  EXPECT_EQ(engine.generate(text, run, nullptr).kept_tokens, 0) << "longer than the plan";
  EXPECT_EQ(engine.generate(text, run, nullptr).kept_tokens, unit(1100 - 16)) << "whose own plan is the context's";
}

// The plan is for the capacity, and is kept to: a later prompt that fills it takes no more memory.
TEST_P(KeptRows, ArePlannedOnce) {
  const uint64_t taken = open_device({.choice = options().device.choice})->vram().used_bytes();  // CUDA's own share
  Engine engine(options());
  const GenerateOptions run = keeping(KeepRows::kAll);
  const GenerateResult first = engine.generate(testing::made_up_ids(700, 512), run, nullptr);
  const GenerateResult last = engine.generate(testing::made_up_ids(kCapacity - 10, 512), run, nullptr);
  EXPECT_EQ(last.kept_tokens, 700);
  EXPECT_EQ(last.token_ids.size(), 10u);
  EXPECT_EQ(last.plan.vram_bytes, first.plan.vram_bytes);
  const uint64_t weights = whole_pages(last.memory.weights_bytes);
  EXPECT_LE(last.memory.vram_peak_bytes, taken + weights + last.plan.vram_bytes + 64 * kKiB);
  testing_support::error_of(ExitCode::kBadInput,
                            [&] { engine.generate(testing::made_up_ids(kCapacity, 512), run, nullptr); });
}

INSTANTIATE_TEST_SUITE_P(, KeptRows,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::ValuesIn(testing::types_to_share())),
                         testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
