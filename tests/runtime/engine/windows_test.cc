// Runs of a model most of whose layers see a window of rows, with windows on either side of the tail: a decoding pass
// sees the rows that prefill sees, and neither a draft, nor a partial step, nor a saved prefix changes a token.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/engine/engine.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/random_checkpoint.h"
#include "runtime/prefix/store.h"
#include "tests/support/golden.h"
#include "tests/support/refusal.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/spill.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_drafts.h"

namespace headrace {
namespace {

using testing::LoadedModel;

constexpr int32_t kWindowVocab = 320;
constexpr int64_t kWindowAnswer = 100;

// The tiny Gemma 3, or gpt-oss, with another window and as many positions.
class WindowModel {
 public:
  explicit WindowModel(int64_t window, const char* name = "gemma3") {
    const std::string from = testing::tiny_model(name);
    nlohmann::json config = nlohmann::json::parse(read_small_file(from + "/config.json", 1 << 16));
    config["sliding_window"] = window;
    config["max_position_embeddings"] = 4096;
    folder_.write("config.json", config.dump());
    folder_.write("model.safetensors", read_small_file(from + "/model.safetensors", 1 << 20));
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

// The tiny Gemma 4 with made-up weights, so that rows of its windows are twice as wide as the others.
class MixedModel {
 public:
  MixedModel() {
    const std::string from = testing::tiny_model("gemma4");
    nlohmann::json config = nlohmann::json::parse(read_small_file(from + "/config.json", 1 << 16));
    config["num_key_value_heads"] = 4;
    folder_.write("config.json", config.dump());
    const auto model = make_random_checkpoint("mixed", parse_config_json(config.dump(), "mixed"), 5);
    nlohmann::json header;
    std::string data;
    for (const TensorInfo& tensor : model->tensors()) {
      std::vector<float> values(static_cast<size_t>(tensor.rows() * tensor.cols()));
      model->read_rows(tensor, 0, tensor.rows(), DType::kF32, values.data());
      const size_t begin = data.size(), bytes = values.size() * sizeof(float);
      data.append(reinterpret_cast<const char*>(values.data()), bytes);
      header[tensor.name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, begin + bytes}}};
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    folder_.write("model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + text + data);
  }
  const std::string& path() const { return folder_.path(); }

 private:
  TemporaryFolder folder_;
};

class WindowLogits : public ::testing::TestWithParam<DeviceChoice> {};
INSTANTIATE_TEST_SUITE_P(Devices, WindowLogits, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

std::vector<float> logits_of_prefill(const LoadedModel& model, const std::vector<int32_t>& ids, size_t rows) {
  auto session = model.session(model.options(static_cast<int64_t>(rows), 1));
  session->prefill({ids.data(), rows}, nullptr, nullptr);
  return session->logits(1);
}

// A chain of tokens after a prompt, whose queries' windows begin in the tail, in a segment, or before the first row.
TEST_P(WindowLogits, APassSeesTheRowsOfPrefill) {
  constexpr size_t kPrompt = 1500, kChain = 40;
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt + kChain, kWindowVocab);
  std::vector<std::vector<float>> by_window;
  for (const auto& [name, window] : {std::pair<const char*, int64_t>{"gemma3", 1},
                                     {"gemma3", 17},
                                     {"gemma3", 64},
                                     {"gemma3", 300},
                                     {"gemma3", 333},
                                     {"gemma3", 700},
                                     {"gemma3", 1024},
                                     {"gemma3", 4000},
                                     {"gptoss", 32},
                                     {"gptoss", 128},
                                     {"gptoss", 700},
                                     {"gemma4e", 17},
                                     {"gemma4e", 64},
                                     {"gemma4e", 700}}) {
    const float tolerance = std::string(name) == "gemma4e" ? 1e-2f : 1e-3f;  // as its golden
    const WindowModel files(window, name);
    const LoadedModel model(files.path(), DType::kF32, GetParam());
    SessionOptions options = model.options(kPrompt, kChain + 1);
    options.pass_rows = options.drawn_rows = kChain;
    auto session = model.session(options);
    session->prefill({ids.data(), kPrompt}, nullptr, nullptr);
    Tree tree;
    tree.reset(ids[kPrompt]);
    for (size_t i = 1; i < kChain; ++i) tree.add(ids[kPrompt + i], static_cast<int32_t>(i - 1));
    session->verify(tree);
    const std::vector<float> logits = session->logits(kChain);
    for (const size_t row : {size_t{0}, kChain - 1}) {
      const std::vector<float> expected = logits_of_prefill(model, ids, kPrompt + row + 1);
      EXPECT_LT(testing::largest_difference(logits.data() + row * kWindowVocab, expected.data(), kWindowVocab),
                tolerance)
          << name << " " << window << ", row " << row;
    }
    by_window.push_back(logits);
  }
  for (size_t i = 1; i < by_window.size(); ++i)  // so the comparisons above compare something
    EXPECT_GT(testing::largest_difference(by_window[i].data(), by_window[i - 1].data(), kWindowVocab), 2e-3f) << i;
}

// The same where a layer's rows differ from the next one's, across segments.
TEST_P(WindowLogits, APassSeesRowsOfDifferentHeads) {
  constexpr size_t kPrompt = 1010, kChain = 40, kTurns = 2;
  const MixedModel files;
  const LoadedModel model(files.path(), DType::kF32, GetParam());
  const std::vector<int32_t> ids = testing::made_up_ids(kPrompt + kTurns * kChain, kWindowVocab);
  SessionOptions options = model.options(kPrompt, kTurns * kChain + 1);
  options.pass_rows = options.drawn_rows = kChain;
  auto session = model.session(options);
  session->prefill({ids.data(), kPrompt}, nullptr, nullptr);
  for (size_t turn = 0; turn < kTurns; ++turn) {
    const size_t first = kPrompt + turn * kChain;
    Tree tree;
    tree.reset(ids[first]);
    Acceptance all{.nodes = {0}, .next = 0};
    for (size_t i = 1; i < kChain; ++i) all.nodes.push_back(tree.add(ids[first + i], static_cast<int32_t>(i - 1)));
    session->verify(tree);
    const std::vector<float> logits = session->logits(kChain);
    session->commit(all);
    for (const size_t row : {size_t{0}, kChain - 1}) {
      const std::vector<float> expected = logits_of_prefill(model, ids, first + row + 1);
      EXPECT_LT(testing::largest_difference(logits.data() + row * kWindowVocab, expected.data(), kWindowVocab), 1e-3f)
          << turn << ", row " << row;
    }
  }
}

// Changes a bit of the first layer in each block of states.
void damage_snapshots(const std::string& folder) {
  const PrefixStore store({.folder = folder}, PrefixStore::Use::kLook);
  for (const auto& [key, entry] : store.index().entries()) {
    if (entry.block.kind != PrefixBlockKind::kStates) continue;
    std::fstream file(folder + "/" + key_text(key) + ".kv", std::ios::in | std::ios::out | std::ios::binary);
    const int byte = file.get();
    file.seekp(0);
    file.put(static_cast<char>(byte ^ 16));
    EXPECT_TRUE(file.good());
  }
}

class WindowText : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  EngineOptions options(const std::string& path) const {
    const auto& [device, rows] = GetParam();
    EngineOptions o;
    o.model = path;
    o.device = {.choice = device, .threads = 2};
    o.want_tokenizer = false;
    o.dtype = testing::weights_type(rows);
    o.cache_type_k = o.cache_type_v = rows;
    o.prefill = rows.prefill();
    o.ring.slots = 2;
    return o;
  }
  void check_saved_and_kept(const std::string& path);
  static GenerateOptions answer(float temperature) {
    return {.max_tokens = kWindowAnswer, .sampling = {.temperature = temperature, .seed = 3}, .ignore_eos = true};
  }
  static std::vector<int32_t> plain(Engine& engine, const std::vector<int32_t>& ids, GenerateOptions run) {
    run.speculate = false;
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return engine.generate(ids, run, nullptr).token_ids;
  }
};
INSTANTIATE_TEST_SUITE_P(Types, WindowText, testing::devices_and_types(), testing::name_of_device_and_type);

TEST_P(WindowText, DraftsAndPartialStepsChangeNoToken) {
  int64_t partial = 0, refreshes = 0, accepted = 0;
  for (const auto& [name, window] :
       {std::pair<const char*, int64_t>{"gemma3", 64}, {"gemma3", 700}, {"gptoss", 128}, {"gemma4e", 70}}) {
    if (testing::kSanitized && window == 64) continue;
    const WindowModel files(window, name);
    EngineOptions o = options(files.path());
    o.draft.type = SpecType::kNgram;
    Engine engine(o);
    const std::vector<int32_t> ids = testing::repeated_ids(1300, kWindowVocab);
    for (const float temperature : {0.0f, 0.8f}) {
      if (testing::kSanitized && temperature == 0) continue;
      GenerateOptions run = answer(temperature);
      const std::vector<int32_t> expected = plain(engine, ids, run);
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        run.kv = kv;
        run.verify = VerifyOptions{.mode = VerifyMode::kFull};
        EXPECT_EQ(engine.generate(ids, run, nullptr).token_ids, expected) << window << " T " << temperature;
        for (const PartialKind kind : {PartialKind::kBlocks, PartialKind::kInt8, PartialKind::kInt4}) {
          if (kind == PartialKind::kInt4 && window == 128) continue;  // the tiny gpt-oss has heads of 24
          run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = kind, .interval = 20};
          if (kind == PartialKind::kBlocks) run.verify->budget = 64;
          const GenerateResult said = engine.generate(ids, run, nullptr);
          EXPECT_EQ(said.token_ids, expected) << partial_kind_name(kind) << " " << window << " T " << temperature;
          partial += said.speculation.of(StepMode::kPartial).steps;
          refreshes += said.speculation.of(StepMode::kRefresh).steps;
          accepted += said.speculation.accepted;
        }
      }
    }
  }
  EXPECT_GT(partial, 0);
  EXPECT_GT(refreshes, 0);
  if (!testing::kSanitized) {  // else nothing ran at T = 0, where drafts are certain to be accepted
    EXPECT_GT(accepted, 0);
  }
}

// A head that reads states of layers with and without a window, and a small model. Their caches are their own.
TEST_P(WindowText, DraftsWithLayersChangeNoToken) {
  const WindowModel files(300);
  const TemporaryFolder head_folder;
  testing_support::DraftFiles head =
      testing_support::tiny_eagle3_head({.hidden = 48, .vocab = kWindowVocab, .tapped_layers = {1, 3, 5}});
  head.config["num_attention_heads"] = 2;
  head.config["num_key_value_heads"] = 1;
  head.write(head_folder.path());
  const std::vector<int32_t> ids = testing::made_up_ids(1500, kWindowVocab);
  EngineOptions o = options(files.path());
  const std::vector<int32_t> expected = plain(*std::make_unique<Engine>(o), ids, answer(0.8f));
  for (const SpecType type : {SpecType::kEagle3, SpecType::kSimple}) {
    o.draft = {.type = type, .model = type == SpecType::kEagle3 ? head_folder.path() : testing::tiny_model("qwen3moe")};
    Engine engine(o);
    int64_t proposed = 0;
    for (const VerifyMode mode : {VerifyMode::kFull, VerifyMode::kLossless}) {
      GenerateOptions run = answer(0.8f);
      run.kv = KvMode::kHost;
      run.verify = VerifyOptions{.mode = mode};
      if (mode == VerifyMode::kLossless) {
        run.verify->partial = PartialKind::kInt8;
        run.verify->interval = 20;
      }
      const GenerateResult said = engine.generate(ids, run, nullptr);
      EXPECT_EQ(said.token_ids, expected) << spec_type_name(type);
      proposed += said.speculation.proposed;
    }
    EXPECT_GT(proposed, 100);
  }
}

uint64_t window_bytes(const MemoryPlan& plan) {
  for (const PlanLine& line : plan.lines) {
    if (line.what == "rows of layers with a window") return line.bytes;
  }
  return 0;
}

// Answers across the end of a slot, whose rows take the place of old ones, with windows that need all slots, or nearly
// all rows of them.
TEST_P(WindowText, ARingGivesTheTextOfAllRows) {
  for (const int64_t window : {1, 300, 512, 514, 1024}) {
    if (testing::kSanitized && window != 514) continue;
    const WindowModel files(window);
    EngineOptions o = options(files.path());
    Engine ring(o);
    o.all_window_rows = true;
    Engine all(o);
    for (const size_t prompt : {1500, 2040}) {
      const std::vector<int32_t> ids = testing::made_up_ids(prompt, kWindowVocab);
      const GenerateResult of_ring = ring.generate(ids, answer(0.8f), nullptr);
      const GenerateResult of_all = all.generate(ids, answer(0.8f), nullptr);
      EXPECT_EQ(of_ring.token_ids, of_all.token_ids) << window << ", " << prompt;
      EXPECT_LT(window_bytes(of_ring.plan), window_bytes(of_all.plan)) << window << ", " << prompt;
    }
  }
}

TEST_P(WindowText, TheMemoryOfWindowsDoesNotGrowWithTheContext) {
  const WindowModel files(300);
  Engine engine(options(files.path()));
  uint64_t bytes = 0, cache = 0;
  for (const size_t prompt : {1200, 3000}) {
    const MemoryPlan plan = engine.generate(testing::made_up_ids(prompt, kWindowVocab), answer(0), nullptr).plan;
    EXPECT_GT(window_bytes(plan), 0u);
    EXPECT_TRUE(bytes == 0 || window_bytes(plan) == bytes);
    EXPECT_GT(plan.kv_bytes(), cache);
    bytes = window_bytes(plan);
    cache = plan.kv_bytes();
  }
}

// Of the eight layers three see all rows, and two of those make some, the last of which stays on the device.
TEST_P(WindowText, LayersThatReadOthersRowsTakeNoMemory) {
  Engine engine(options(testing::tiny_model("gemma4e")));
  GenerateOptions run = answer(0);
  for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
    run.kv = kv;
    const RunPlan plan = engine.plan(1300, run);
    EXPECT_EQ(plan.sizes.rows.layers, 2);
    EXPECT_EQ(plan.sizes.reading_layers, 1);
    EXPECT_EQ(plan.sizes.window_layers, 5);
    EXPECT_EQ(plan.memory.host_layers, kv == KvMode::kHost ? 1 : 0);
    EXPECT_EQ(plan.memory.kv_bytes(), 2 * segments_bytes(plan.sizes.rows, 0, plan.memory.segments));
  }
}

TEST_P(WindowText, SavedAndKeptRowsGiveTheSame) {
  check_saved_and_kept(WindowModel(700).path());
  check_saved_and_kept(WindowModel(70, "gemma4e").path());
  if (testing::kSanitized) return;
  check_saved_and_kept(WindowModel(128, "gptoss").path());
  check_saved_and_kept(MixedModel().path());  // the other layers' K is made of what is saved and kept
}

void WindowText::check_saved_and_kept(const std::string& path) {
  const TemporaryFolder cache;
  EngineOptions o = options(path);
  Engine fresh(o);
  o.prefix_cache.folder = cache.path();
  std::vector<int32_t> ids = testing::made_up_ids(2400, kWindowVocab);
  const GenerateOptions run = answer(0.8f);
  const std::vector<int32_t> first = plain(fresh, ids, run);
  EXPECT_EQ(Engine(o).generate(ids, run, nullptr).token_ids, first);
  ids.resize(2300);
  ids.push_back(7);
  const std::vector<int32_t> second = plain(fresh, ids, run);
  const GenerateResult restored = Engine(o).generate(ids, run, nullptr);
  EXPECT_EQ(restored.token_ids, second);
  EXPECT_GE(restored.reused_tokens(), 2048);
  damage_snapshots(cache.path());
  const GenerateResult damaged = Engine(o).generate(ids, run, nullptr);
  EXPECT_EQ(damaged.token_ids, second);
  EXPECT_EQ(damaged.reused_tokens(), 0);
  EXPECT_GE(damaged.prefix.restarts, 1);
  EXPECT_EQ(Engine(o).generate(ids, run, nullptr).token_ids, second);
  EngineOptions unsaved = options(path);
  Engine engine(unsaved);
  GenerateOptions kept = run;
  kept.keep = KeepRows::kPrompt;
  kept.keep_tokens = 4096;
  EXPECT_EQ(engine.generate(ids, kept, nullptr).token_ids, second);
  const GenerateResult again = engine.generate(ids, kept, nullptr);
  EXPECT_EQ(again.token_ids, second);
  EXPECT_GE(again.kept_tokens, 2048);
}

TEST_P(WindowText, RowsOfDifferentHeadsStreamAndStay) {
  const MixedModel files;
  EngineOptions o = options(files.path());
  o.draft.type = SpecType::kNgram;
  Engine engine(o);
  const std::vector<int32_t> ids = testing::repeated_ids(1300, kWindowVocab);
  int64_t accepted = 0;
  for (const float temperature : {0.0f, 0.8f}) {
    if (testing::kSanitized && temperature == 0) continue;
    GenerateOptions run = answer(temperature);
    const std::vector<int32_t> expected = plain(engine, ids, run);
    for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
      run.kv = kv;
      run.verify = VerifyOptions{.mode = VerifyMode::kFull};
      const GenerateResult said = engine.generate(ids, run, nullptr);
      EXPECT_EQ(said.token_ids, expected) << " T " << temperature;
      accepted += said.speculation.accepted;
      for (const PartialKind kind : {PartialKind::kBlocks, PartialKind::kInt8, PartialKind::kInt4}) {
        run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = kind, .interval = 20};
        if (kind == PartialKind::kBlocks) run.verify->budget = 64;
        EXPECT_EQ(engine.generate(ids, run, nullptr).token_ids, expected)
            << partial_kind_name(kind) << " T " << temperature;
      }
    }
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    run.keep = KeepRows::kPrompt;
    run.keep_tokens = 4096;
    EXPECT_EQ(engine.generate(ids, run, nullptr).token_ids, expected) << " T " << temperature;
    const GenerateResult again = engine.generate(ids, run, nullptr);
    EXPECT_EQ(again.token_ids, expected) << " T " << temperature;
    if (std::get<0>(GetParam()) == DeviceChoice::kCpu) {  // the prompt is shorter than a GPU's group
      EXPECT_GE(again.kept_tokens, 1024);
    }
  }
  if (!testing::kSanitized) {  // else nothing ran at T = 0, where drafts are certain to be accepted
    EXPECT_GT(accepted, 0);
  }
}

// Where K and V of a layer are one projection, V alone is in host memory and on the disk, unless both are low-bit. Rows
// of host memory are kept, too.
TEST_P(WindowText, KeysAreMadeOfValuesThatStreamAndSpill) {
  const MixedModel files;
  EngineOptions o = options(files.path());
  o.draft.type = SpecType::kNgram;
  o.kv = KvMode::kHost;
  Engine engine(o);
  const std::vector<int32_t> ids = testing::repeated_ids(2900, kWindowVocab);
  GenerateOptions run = answer(0.8f);
  const std::vector<int32_t> expected = plain(engine, ids, run);
  run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .partial = PartialKind::kInt8, .interval = 20};
  const GenerateResult streamed = engine.generate(ids, run, nullptr);
  EXPECT_EQ(streamed.token_ids, expected);
  const DType rows = o.cache_type_k.value();
  constexpr uint64_t kLayers = 2, kDim = 32, kSegments = 6;  // those that see all rows; they have one KV head
  const uint64_t planes = low_bit(rows) ? 2 : 1;
  EXPECT_EQ(streamed.plan.host_bytes,
            kLayers * kSegments * whole_pages(planes * kSmallSegmentRows * row_bytes(rows, kDim)));
  EXPECT_EQ(streamed.plan.active_key_bytes, low_bit(rows) ? 0 : streamed.plan.active_bytes);

  const TemporaryFolder disk;
  const RunPlan whole = engine.plan(static_cast<int64_t>(ids.size()), run);
  const Backend backend = engine.device().backend();
  const uint64_t weights = backend == Backend::kCpu ? whole.weights_bytes : 0;
  const uint64_t segment = streamed.plan.host_bytes / (kLayers * kSegments);
  o.spill = {.folder = disk.path(), .slots = 2};
  o.device.host_mem_bytes = weights + testing::host_bytes_for(whole.memory, backend, 0.6, 2 * segment);
  Engine spilling(o);
  const GenerateResult spilled = spilling.generate(ids, run, nullptr);
  EXPECT_EQ(spilled.token_ids, expected);
  EXPECT_GT(spilled.plan.disk_bytes, 0u);
}

TEST(WindowRefusals, ASmallModelWithWindows) {
  EngineOptions own;
  own.model = testing::tiny_model("gemma3");
  own.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  own.want_tokenizer = false;
  own.draft = {.type = SpecType::kSimple, .model = own.model};
  testing_support::expect_error(ExitCode::kBadInput, own.model, {"layers with a window", "cannot be drafts"},
                                [&] { const Engine refused(own); });
}

// The last layer of the tiny model has a window.
TEST(WindowRefusals, DraftsThatReadTheLastLayer) {
  const TemporaryFolder folder;
  testing_support::tiny_longspec_layer({.hidden = 48, .vocab = kWindowVocab}).write(folder.path());
  EngineOptions o;
  o.model = testing::tiny_model("gemma3");
  o.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  o.want_tokenizer = false;
  o.draft = {.type = SpecType::kLongSpec, .model = folder.path()};
  testing_support::expect_error(ExitCode::kUsage, "--spec-type", {"draft-longspec reads all rows", "window"},
                                [&] { const Engine refused(o); });
  o.draft = {.type = SpecType::kSimple, .model = testing::tiny_model("qwen3moe")};
  o.draft.retrieval = RetrievalShape{.chunks = 6, .rows = 32, .every = 2};
  testing_support::expect_error(ExitCode::kUsage, "--draft-cache", {"retrieval reads all rows", "window"},
                                [&] { const Engine refused(o); });
}

TEST(WindowRefusals, TwoTypesWhereKeysAreMadeOfValues) {
  EngineOptions o;
  o.model = testing::tiny_model("gemma4");
  o.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  o.want_tokenizer = false;
  o.cache_type_k = DType::kF16;
  testing_support::expect_error(ExitCode::kUsage, "--cache-type-k",
                                {"is f16 and --cache-type-v is f32", "made of its values"},
                                [&] { const Engine refused(o); });
  o.cache_type_v = DType::kF16;
  const Engine accepted(o);
}

}  // namespace
}  // namespace headrace
