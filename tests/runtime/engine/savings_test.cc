// What a run does for less device memory: embeddings and a prompt's states in host memory, a window of the MTP block.
// It changes no bit and no text, and a run has it only where nothing fits otherwise.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "offload/device/dry_run_device.h"
#include "runtime/engine/engine.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/engine_search.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"
#include "tests/support/turns.h"

namespace headrace {
namespace {

using testing::LoadedModel;

// ---- The bits -------------------------------------------------------------------------------------------------------

class SavingsBits : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  static DeviceChoice device() { return std::get<0>(GetParam()); }
  static testing::RowsType rows() { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Types, SavingsBits, testing::devices_and_types(), testing::name_of_device_and_type);

// Prompts that fill the slots many times, whose last group is whole, short, or of one row. The memory is the plan's.
TEST_P(SavingsBits, StatesInHostMemoryGiveThem) {
  const LoadedModel model(testing::tiny_model("qwen35"), rows(), device());
  for (const int64_t prompt : {1300, 1024, 769}) {
    std::vector<std::vector<float>> usual, streamed;
    uint64_t planned = 0;
    for (std::vector<std::vector<float>>* const logits : {&usual, &streamed}) {
      SessionOptions options = model.options(prompt, 8);
      options.prefill_group = 128;
      options.host_states = logits == &streamed;
      MemoryBudget &vram = model.device->vram(), &host = model.device->host_mem();
      vram.reset_peak();
      host.reset_peak();
      const uint64_t vram_before = vram.used_bytes(), host_before = host.own_peak_bytes();
      const auto session = model.session(options);
      const MemoryPlan& plan = session->plan();
      EXPECT_EQ(plan.host_states_bytes > 0, options.host_states);
      testing::decode_plainly(*session, testing::made_up_ids(prompt, 320), 4, logits);
      EXPECT_LE(vram.peak_bytes() - vram_before, plan.vram_bytes);
      EXPECT_LE(host.own_peak_bytes() - host_before, plan.host_total_bytes);
      const uint64_t states = static_cast<uint64_t>(prompt - 4 * 128) * 48 * dtype_bytes(model.weights.dtype());
      if (options.host_states) {
        EXPECT_LT(plan.vram_bytes, planned - states / 2);
      }
      planned = plan.vram_bytes;
    }
    EXPECT_TRUE(streamed == usual) << prompt;
  }
}

// A prompt that the slots hold has its states on the device.
TEST_P(SavingsBits, ShortPromptsStayOnTheDevice) {
  const LoadedModel model(testing::tiny_model("qwen35"), rows(), device());
  SessionOptions options = model.options(512, 8);
  options.prefill_group = 128;
  options.host_states = true;
  EXPECT_EQ(model.session(options)->plan().host_states_bytes, 0u);
}

TEST_P(SavingsBits, EmbeddingsInHostMemoryGiveThem) {
  LoadedModel model(testing::tiny_model("qwen35"), rows(), device());
  const SessionOptions options = model.options(300, 20);
  std::vector<std::vector<float>> usual, moved;
  testing::decode_plainly(*model.session(options), testing::made_up_ids(300, 320), 12, &usual);
  const uint64_t vram = model.device->vram().used_bytes(), all = model.weights.bytes();
  const uint64_t bytes = model.weights.movable_bytes();
  EXPECT_EQ(bytes, whole_pages(320 * 48 * dtype_bytes(model.weights.dtype())));
  model.weights.move_embedding_to_host(*model.device);
  EXPECT_EQ(model.weights.movable_bytes(), 0u);
  EXPECT_EQ(model.weights.bytes(), all - bytes);
  if (device() == DeviceChoice::kCuda) {
    EXPECT_EQ(model.device->vram().used_bytes(), vram - bytes);
  }
  testing::decode_plainly(*model.session(options), testing::made_up_ids(300, 320), 12, &moved);
  EXPECT_TRUE(moved == usual);
}

TEST(Savings, EmbeddingsThatTheHeadReadsStay) {
  const LoadedModel model(testing::tiny_model("llama31"), DType::kF32);
  EXPECT_EQ(model.weights.movable_bytes() > 0, !model.checkpoint->config().tied_head);
  const LoadedModel tied(testing::tiny_model("qwen25"), DType::kF32);
  EXPECT_EQ(tied.weights.movable_bytes() > 0, !tied.checkpoint->config().tied_head);
}

// ---- The text -------------------------------------------------------------------------------------------------------

struct Drafted {
  DeviceChoice device;
  SpecType draft;
};

class SavingsText : public ::testing::TestWithParam<Drafted> {
 protected:
  SavingsText() {
    if (GetParam().draft == SpecType::kEagle3) testing_support::tiny_eagle3_head().write(folder_.path());
  }
  EngineOptions options(bool saves) const {
    EngineOptions o;
    o.model = testing::tiny_model(GetParam().draft == SpecType::kEagle3 ? "llama31" : "qwen35");
    o.device = {.choice = GetParam().device, .threads = 2};
    o.want_tokenizer = false;
    o.prefill_group = 128;
    o.draft.type = GetParam().draft;
    if (GetParam().draft != SpecType::kNone) o.draft.tree = parse_tree("beams:4,8,8");
    if (GetParam().draft == SpecType::kEagle3) o.draft.model = folder_.path();
    o.host_states = o.host_embedding = saves;
    return o;
  }
  static GenerateOptions run() {
    GenerateOptions run{.max_tokens = 60, .sampling = {.temperature = 0.8f, .seed = 3}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return run;
  }
  static void expect_same(const GenerateResult& saved, const GenerateResult& usual) {
    EXPECT_EQ(saved.token_ids, usual.token_ids);
    EXPECT_EQ(saved.speculation.accepted, usual.speculation.accepted) << "the draft has other rows";
    EXPECT_EQ(saved.log_probs, usual.log_probs);
  }
  const TemporaryFolder folder_;
};
std::vector<Drafted> drafted() {
  std::vector<Drafted> all;
  for (const DeviceChoice device : testing::session_devices()) {
    for (const SpecType draft : {SpecType::kNone, SpecType::kEagle3, SpecType::kMtp}) all.push_back({device, draft});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Drafts, SavingsText, ::testing::ValuesIn(drafted()), [](const auto& given) {
  std::string name = spec_type_name(given.param.draft);
  std::erase(name, '-');
  return testing::device_name(given.param.device) + "_" + name;
});

TEST_P(SavingsText, IsTheSameWithADraftThatReadsStates) {
  Engine saves(options(true)), usual(options(false));
  for (const int64_t prompt : {600, 1300}) {
    const std::vector<int32_t> ids = testing::repeated_ids(prompt, 320);
    const GenerateResult saved = saves.generate(ids, run(), nullptr);
    EXPECT_GT(saved.plan.host_states_bytes, 0u);
    expect_same(saved, usual.generate(ids, run(), nullptr));
  }
}

// The second run begins with the rows of the first, and so do the turns of a conversation.
TEST_P(SavingsText, IsTheSameAfterSavedPrefixesAndKeptRows) {
  const TemporaryFolder first, second;
  EngineOptions saving = options(true), usual = options(false);
  saving.prefix_cache.folder = first.path();
  usual.prefix_cache.folder = second.path();
  Engine a(saving), b(usual);
  for (const int64_t prompt : {1300, 1900}) {
    const std::vector<int32_t> ids = testing::made_up_ids(prompt, 320);
    const GenerateResult saved = a.generate(ids, run(), nullptr), plain = b.generate(ids, run(), nullptr);
    EXPECT_EQ(saved.prefix.rows, plain.prefix.rows);
    EXPECT_EQ(saved.prefix.rows > 0, prompt == 1900);
    expect_same(saved, plain);
  }
  GenerateOptions keeping = run();
  keeping.keep = KeepRows::kPrompt;
  keeping.keep_tokens = 2048;
  Engine c(options(true)), d(options(false));
  EXPECT_EQ(testing::talk(c, keeping), testing::talk(d, keeping));
}

TEST_P(SavingsText, ScoresAreTheSame) {
  Engine saves(options(true)), usual(options(false));
  GenerateOptions scoring = run();
  const std::vector<int32_t> ids = testing::made_up_ids(901, 320);
  scoring.score_next.assign(ids.begin() + 1, ids.end());
  scoring.max_tokens = 0;
  scoring.speculate = false;
  const std::vector<int32_t> prompt(ids.begin(), ids.end() - 1);
  const GenerateResult saved = saves.generate(prompt, scoring, nullptr);
  EXPECT_EQ(saved.log_probs.size(), 900u);
  expect_same(saved, usual.generate(prompt, scoring, nullptr));
}

// ---- The window of the MTP block ------------------------------------------------------------------------------------

// A budget that has room for a window and not for all rows. In approximate runs, whose text depends on the draft, the
// block has all rows or the run does not fit.
class SmallMtp : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static constexpr int64_t kPrompt = 9000;
  static EngineOptions options() {
    EngineOptions o;
    o.model = testing::tiny_model("qwen35");
    o.device = {.choice = GetParam(), .threads = 2};
    o.want_tokenizer = false;
    o.dtype = DType::kBF16;
    o.ring.slots = 2;
    o.rope = {.scaling = RopeScaling::kLinear, .factor = 12};
    o.draft.type = SpecType::kMtp;
    return o;
  }
  static GenerateOptions run() {
    GenerateOptions run{.max_tokens = 60, .kv = KvMode::kHost, .sampling = {.temperature = 0.8f, .seed = 3}};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    run.ignore_eos = true;
    return run;
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, SmallMtp, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(SmallMtp, HasAWindowWhereItsRowsHaveNoRoom) {
  EngineOptions small = options();
  small.host_embedding = small.host_states = false;
  small.weights_place = WeightsPlace::kDevice;
  Engine large(small);
  EXPECT_EQ(large.plan(kPrompt, run()).draft_window.rows, 0);
  std::unique_ptr<Engine> engine;
  uint64_t low = 0, high = 2 * kGiB;  // on a GPU CUDA's own memory is in it
  while (engine == nullptr && low + 16 * kKiB < high) {
    small.device.vram_bytes = low + (high - low) / 2;
    try {
      auto one = std::make_unique<Engine>(small);
      const bool all = one->plan(kPrompt, run()).draft_window.rows == 0;
      if (!all) engine = std::move(one);
      high = small.device.vram_bytes;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
      low = small.device.vram_bytes;
    }
  }
  ASSERT_NE(engine, nullptr);
  EXPECT_EQ(engine->plan(kPrompt, run()).draft_window.rows, 8192);
  const std::vector<int32_t> ids = testing::repeated_ids(kPrompt, 320);
  GenerateOptions plain = run();
  plain.speculate = false;
  const GenerateResult said = engine->generate(ids, run(), nullptr), wanted = large.generate(ids, plain, nullptr);
  EXPECT_EQ(said.token_ids, wanted.token_ids);
  EXPECT_EQ(said.speculation.type, "draft-mtp");
  EXPECT_GT(said.speculation.accepted, 0);
  EXPECT_LE(said.memory.vram_peak_bytes, small.device.vram_bytes);
}

// A conversation on kept rows: the block continues with those of its window, also where a prompt goes back by more rows
// than its ring has.
TEST_P(SmallMtp, GoesOnWithKeptRows) {
  GenerateOptions keeping = run();
  keeping.keep = KeepRows::kAll;
  keeping.keep_tokens = 20000;
  EngineOptions o = options();
  Engine usual(o);
  o.windowed_draft = true;
  Engine windowed(o);
  std::vector<int32_t> ids = testing::made_up_ids(5000, 320);
  for (const int64_t tokens : {5000, 5300, 14000, 6000, 9500}) {
    const std::vector<int32_t> more = testing::made_up_ids(14000, 320, static_cast<uint32_t>(tokens));
    if (tokens < static_cast<int64_t>(ids.size())) ids.resize(static_cast<size_t>(tokens - 900));
    ids.insert(ids.end(), more.begin(), more.begin() + (tokens - static_cast<int64_t>(ids.size())));
    const GenerateResult a = windowed.generate(ids, keeping, nullptr), b = usual.generate(ids, keeping, nullptr);
    EXPECT_EQ(a.token_ids, b.token_ids) << tokens;
    EXPECT_EQ(a.kept_tokens, b.kept_tokens);
    EXPECT_EQ(a.draft_window.rows, 8192);
    EXPECT_EQ(b.draft_window.rows, 0);
  }
}

// ---- On paper -------------------------------------------------------------------------------------------------------

// Qwen3.6-27B in Q4_K_M on a card of 24 GB.
constexpr const char* k27B = R"({"model_type": "qwen3_5_text", "vocab_size": 248320, "hidden_size": 5120,
  "num_hidden_layers": 64, "full_attention_interval": 4, "num_attention_heads": 24, "num_key_value_heads": 4,
  "head_dim": 256, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
  "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
  "intermediate_size": 17408, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "tie_word_embeddings": false,
  "mtp_num_hidden_layers": 1})";

std::optional<RunPlan> plan_of_27b(uint64_t vram_bytes, int64_t context, PartialKind kind, const EngineOptions& given) {
  EngineOptions options = given;
  options.weights_place = WeightsPlace::kDevice;
  options.want_tokenizer = false;
  options.draft.type = SpecType::kMtp;
  options.verify = {.mode = VerifyMode::kLossless, .partial = kind};
  const DryRunCard card{
      .name = "paper", .vram_bytes = vram_bytes, .host_bytes = 64 * kGiB, .taken_bytes = kDryRunContextBytes};
  try {
    const Engine engine(options,
                        make_random_checkpoint("27b", parse_config_json(k27B, "27b"), 0, find_weight_mixture("q4_k_m")),
                        open_dry_run_device(card));
    return engine.plan(context - 256, {.max_tokens = 256 - 8});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
    return std::nullopt;
  }
}

TEST(Savings, ACopyOfAllRowsOfA27BFitsACardOf24GB) {
  struct Case {
    int64_t context;
    PartialKind kind;
    uint64_t vram;
    bool windowed;
  };
  for (const Case& c :
       {Case{131072, PartialKind::kInt8, 22 * kGiB, true}, Case{262144, PartialKind::kInt4, 23 * kGiB, true}}) {
    const std::optional<RunPlan> plan = plan_of_27b(c.vram, c.context, c.kind, {});
    ASSERT_TRUE(plan) << c.context;
    EXPECT_EQ(plan->partial.copy, copy_type(c.kind));
    EXPECT_EQ(plan->draft, "draft-mtp");
    EXPECT_GE(plan->most_pending, kMaxPending / 2);
    EXPECT_TRUE(plan->memory.late_partial);
    EXPECT_GT(plan->memory.host_embedding_bytes, 0u);
    EXPECT_EQ(plan->draft_window.rows > 0, c.windowed);
    EXPECT_LE(plan->memory.vram_bytes + whole_pages(plan->weights_bytes) + kDryRunContextBytes, c.vram);
    EXPECT_EQ(plan->memory.remainder_segments > 0, c.kind == PartialKind::kInt8);
  }
}

// With room for everything nothing is saved.
TEST(Savings, AreNoneWhereThereIsRoom) {
  const std::optional<RunPlan> plan = plan_of_27b(64 * kGiB, 131072, PartialKind::kInt8, {});
  ASSERT_TRUE(plan);
  EXPECT_FALSE(plan->memory.late_partial);
  EXPECT_EQ(plan->memory.host_embedding_bytes, 0u);
  EXPECT_EQ(plan->memory.host_states_bytes, 0u);
  EXPECT_EQ(plan->draft_window.rows, 0);
}

}  // namespace
}  // namespace headrace
