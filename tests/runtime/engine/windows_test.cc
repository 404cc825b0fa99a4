// Runs of a model most of whose layers see a window of rows, with windows on either side of the tail: a decoding pass
// sees the rows that prefill sees, and neither a draft, nor a partial step, nor a saved prefix changes a token.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/base/input_file.h"
#include "runtime/engine/engine.h"
#include "tests/support/golden.h"
#include "tests/support/refusal.h"
#include "tests/support/sanitized.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::LoadedModel;

constexpr int32_t kWindowVocab = 320;
constexpr int64_t kWindowAnswer = 100;

// The tiny Gemma 3 with another window.
class WindowModel {
 public:
  explicit WindowModel(int64_t window) {
    const std::string from = testing::tiny_model("gemma3");
    nlohmann::json config = nlohmann::json::parse(read_small_file(from + "/config.json", 1 << 16));
    config["sliding_window"] = window;
    folder_.write("config.json", config.dump());
    folder_.write("model.safetensors", read_small_file(from + "/model.safetensors", 1 << 20));
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
  for (const int64_t window : {1, 17, 64, 300, 333, 700, 1024, 4000}) {
    const WindowModel files(window);
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
      EXPECT_LT(testing::largest_difference(logits.data() + row * kWindowVocab, expected.data(), kWindowVocab), 1e-3f)
          << window << ", row " << row;
    }
    by_window.push_back(logits);
  }
  for (size_t i = 1; i < by_window.size(); ++i)  // so the comparisons above compare something
    EXPECT_GT(testing::largest_difference(by_window[i].data(), by_window[i - 1].data(), kWindowVocab), 2e-3f) << i;
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
  for (const int64_t window : {64, 700}) {
    if (testing::kSanitized && window == 64) continue;
    const WindowModel files(window);
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
  EXPECT_GT(accepted, 0);
}

TEST_P(WindowText, SavedAndKeptRowsGiveTheSame) {
  const WindowModel files(700);
  const TemporaryFolder cache;
  EngineOptions o = options(files.path());
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
  EngineOptions unsaved = options(files.path());
  Engine engine(unsaved);
  GenerateOptions kept = run;
  kept.keep = KeepRows::kPrompt;
  kept.keep_tokens = 4096;
  EXPECT_EQ(engine.generate(ids, kept, nullptr).token_ids, second);
  const GenerateResult again = engine.generate(ids, kept, nullptr);
  EXPECT_EQ(again.token_ids, second);
  EXPECT_GE(again.kept_tokens, 2048);
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

}  // namespace
}  // namespace headrace
