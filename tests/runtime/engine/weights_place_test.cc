// Where the weights are cannot matter: layers in host memory, which cross the link in every pass, give the same bits
// and the same text as those on the device, beside rows in every tier, drafts, partial steps, saved prefixes and kept
// rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/placed_weights.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::decode_in_budget;
using testing::LoadedModel;
using testing::SaidInBudget;

// ---- The bits -------------------------------------------------------------------------------------------------------

struct Case {
  const char* model;
  testing::RowsType dtype;
  int64_t prompt, tokens;
  float temperature;
};

class WeightsPlaces : public ::testing::TestWithParam<std::tuple<DeviceChoice, Case>> {};

TEST_P(WeightsPlaces, GiveTheSameBits) {
  const auto& [choice, c] = GetParam();
  LoadedModel model(testing::tiny_model(c.model), c.dtype, choice);
  const int64_t layers = model.weights.layer_count();
  SessionOptions options = model.options(c.prompt, c.tokens);
  options.sampling = {.temperature = c.temperature, .top_p = 0.95f, .seed = 7};
  options.prefill_group = 256;
  options.kv = KvMode::kDevice;
  const SaidInBudget usual = decode_in_budget(model, options, c.tokens);
  EXPECT_EQ(usual.plan.host_weights_layers, 0);
  options.weights = WeightsPlace::kAuto;  // beside the layers that have left
  options.ring = {.slots = 2, .slot_bytes = 64 * kKiB};
  for (const int64_t in_host : {std::min<int64_t>(3, layers), layers}) {
    model.weights.release();
    model.weights.allocate(*model.device, {.host_layers = in_host});
    ASSERT_TRUE(model.weights.load(*model.checkpoint, *model.device, nullptr, nullptr));
    for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
      options.kv = kv;
      const SaidInBudget there = decode_in_budget(model, options, c.tokens);
      EXPECT_EQ(there.tokens, usual.tokens) << in_host;
      EXPECT_EQ(there.logits, usual.logits) << in_host;
      EXPECT_EQ(there.plan.host_weights_layers, in_host);
      // Each layer crosses in prefill and in each step, and the ring is ahead by two at the end.
      uint64_t pass = 0;
      for (int64_t layer = layers - in_host; layer < layers; ++layer) pass += model.weights.layer_bytes(layer);
      EXPECT_EQ(there.plan.host_weights_bytes, pass);
      EXPECT_GE(there.in_bytes, static_cast<uint64_t>(c.tokens) * pass);
      if (kv == KvMode::kDevice) {
        EXPECT_LT(there.in_bytes, usual.in_bytes + static_cast<uint64_t>(c.tokens + 1) * pass);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, WeightsPlaces,
    ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                       ::testing::Values(Case{"llama31", DType::kF32, 1500, 20, 0.0f},
                                         Case{"qwen3", DType::kBF16, 1000, 40, 0.9f},  // crosses row 1,024
                                         Case{"qwen3", DType::kInt8, 600, 12, 0.9f},
                                         Case{"qwen25", DType::kBF16, 100, 12, 0.9f},  // a tied head, biases
                                         Case{"qwen3moe", DType::kBF16, 600, 12, 0.9f},
                                         Case{"qwen3moe", testing::kReadInInt8, 600, 12, 0.0f},
                                         Case{"qwen35", DType::kBF16, 600, 12, 0.9f},
                                         Case{"gemma3", testing::kReadInInt8, 600, 12, 0.0f},
                                         Case{"gemma4moe", DType::kBF16, 600, 12, 0.9f},
                                         Case{"gemma4e", DType::kBF16, 600, 12, 0.9f},
                                         Case{"gemma4e", testing::kReadInInt8, 600, 12, 0.0f})),
    [](const auto& given) {
      const Case& c = std::get<1>(given.param);
      return testing::device_name(std::get<0>(given.param)) + "_" + c.model + "_" + c.dtype.name();
    });

// ---- The text -------------------------------------------------------------------------------------------------------

class WeightsPlaceText : public testing::DraftedText {};
INSTANTIATE_TEST_SUITE_P(Drafts, WeightsPlaceText, ::testing::ValuesIn(testing::each_draft()), testing::drafted_name);

TEST_P(WeightsPlaceText, IsTheSameInEveryMode) {
  Engine there(options(WeightsPlace::kHost)), usual(options(WeightsPlace::kDevice));
  const std::vector<int32_t> ids = testing::repeated_ids(1300, 320);
  for (const VerifyMode verify : {VerifyMode::kFull, VerifyMode::kLossless}) {
    for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
      const GenerateResult streamed = there.generate(ids, run(verify, kv), nullptr);
      EXPECT_GT(streamed.plan.host_weights_bytes, 0u);
      EXPECT_EQ(streamed.plan.weights_slots, 2);
      EXPECT_EQ(streamed.token_ids, usual.generate(ids, run(verify, kv), nullptr).token_ids)
          << verify_mode_name(verify) << ", " << (kv == KvMode::kHost ? "host" : "device");
    }
  }
}

TEST_P(WeightsPlaceText, IsTheSameAfterSavedPrefixesAndKeptRows) {
  const GenerateOptions plain = run(VerifyMode::kFull, KvMode::kAuto);
  testing::expect_same_after_saved_prefixes_and_kept_rows({options(WeightsPlace::kHost), plain},
                                                          {options(WeightsPlace::kDevice), plain});
}

// ---- The choice -----------------------------------------------------------------------------------------------------

template <typename Action>
ErrorInfo refusal_of(const Action& action) {
  return testing_support::refusal_of(ExitCode::kDoesNotFit, action);
}

class WeightsPlaceAuto : public testing::PlaceByBudget {
 protected:
  static EngineOptions options() { return PlaceByBudget::options("llama31"); }
};
// On a GPU the tiny model's layers are less than a granule of what a run takes beside them.
INSTANTIATE_TEST_SUITE_P(Devices, WeightsPlaceAuto, ::testing::Values(DeviceChoice::kCpu),
                         [](const auto& given) { return testing::device_name(given.param); });

// Of an engine whose first runs have room beside all weights, a long one has not; later ones have what it left.
TEST_P(WeightsPlaceAuto, LayersLeaveWhereNothingElseHelps) {
  EngineOptions all = options();
  Engine whole(all);
  const int64_t longest = 1900;
  const RunPlan roomy = whole.plan(longest, run());
  EXPECT_EQ(roomy.memory.host_weights_layers, 0);
  GenerateOptions host = run();
  host.kv = KvMode::kHost;
  const RunPlan least = whole.plan(longest, host);  // with rows in host memory
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();
  EngineOptions tight = all;
  tight.device.vram_bytes = taken + whole_pages(least.weights_bytes) + least.memory.vram_bytes - kPageBytes;
  Engine engine(tight);
  for (const int64_t prompt : {50, 1900, 50, 1900}) {
    const std::vector<int32_t> ids = testing::made_up_ids(prompt, 320);
    const GenerateResult result = engine.generate(ids, run(), nullptr);
    EXPECT_EQ(result.token_ids, whole.generate(ids, run(), nullptr).token_ids) << prompt;
    EXPECT_LE(result.memory.vram_peak_bytes, tight.device.vram_bytes);
    EXPECT_EQ(result.memory.weights_bytes, least.weights_bytes - result.plan.host_weights_bytes);
  }
  EXPECT_EQ(engine.plan(longest, run()).memory.host_weights_layers, 3);  // a ring of two saves nothing for two
  tight.weights_place = WeightsPlace::kDevice;
  Engine stays(tight);
  const ErrorInfo refused = refusal_of([&] { stays.generate(testing::made_up_ids(longest, 320), run(), nullptr); });
  EXPECT_EQ(refused.what.find("weights"), std::string::npos) << refused.what;
  tight.device.vram_bytes += kPageBytes;
  EXPECT_EQ(Engine(tight).plan(longest, run()).memory.host_weights_layers, 0);
}

// Twelve layers, whose weights take more than all else.
std::unique_ptr<Checkpoint> deep_model() {
  ModelConfig config = open_checkpoint(testing::tiny_model("llama31"))->config();
  config.layers.resize(12, config.layers.front());
  for (LayerSpec& layer : config.layers) layer.ffn.width = 2048;
  return make_random_checkpoint("deep", config, 0);
}

// Weights that the device cannot hold are never there as a whole.
TEST_P(WeightsPlaceAuto, TheModelMayBeLargerThanTheDevice) {
  EngineOptions all = options();
  all.dtype = DType::kF32;
  Engine whole(all, deep_model());
  const std::vector<int32_t> ids = testing::made_up_ids(50, 320);
  const GenerateResult usual = whole.generate(ids, run(), nullptr);
  EngineOptions small = all;
  small.weights_place = WeightsPlace::kHost;
  const MemoryPlan streamed = Engine(small, deep_model()).plan(50, run()).memory;
  EXPECT_EQ(streamed.host_weights_layers, 12);
  small.weights_place = WeightsPlace::kAuto;
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();
  const uint64_t weights = whole_pages(usual.memory.weights_bytes), layer = streamed.weights_slot_bytes;
  const uint64_t least = taken + weights - streamed.host_weights_bytes + streamed.vram_bytes;
  ASSERT_LT(least + 5 * layer, taken + weights);
  for (const uint64_t stay : {0, 1, 5}) {
    small.device.vram_bytes = least + stay * layer;
    Engine engine(small, deep_model());
    const GenerateResult result = engine.generate(ids, run(), nullptr);
    EXPECT_EQ(result.token_ids, usual.token_ids);
    EXPECT_EQ(result.plan.host_weights_layers, static_cast<int64_t>(12 - stay));
    EXPECT_LE(result.memory.vram_peak_bytes, small.device.vram_bytes);
    EXPECT_GE(result.memory.host_peak_bytes, result.plan.host_weights_bytes);
    EXPECT_EQ(engine.generate(ids, run(), nullptr).token_ids, usual.token_ids);
  }
  small.device.vram_bytes = least - kPageBytes;
  const ErrorInfo refused = refusal_of([&] { Engine(small, deep_model()).generate(ids, run(), nullptr); });
  EXPECT_NE(refused.what.find("for the layers' weights and a context of"), std::string::npos) << refused.what;
  EXPECT_NE(refused.hint.find("raise --vram by 4.00 KiB"), std::string::npos) << refused.hint;
}

// Not even a ring has room: refused before a run, with what would do.
TEST_P(WeightsPlaceAuto, ADeviceWithoutRoomForARingIsRefused) {
  EngineOptions small = options();
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();
  small.device.vram_bytes = taken + 64 * kKiB;
  const ErrorInfo refused = refusal_of([&] { Engine engine(small); });
  EXPECT_EQ(refused.where, "--vram");
  EXPECT_NE(refused.what.find("for the weights that cannot be in host memory"), std::string::npos) << refused.what;
  EXPECT_NE(refused.hint.find("raise --vram"), std::string::npos) << refused.hint;
}

// What tokens add to the layers is in host memory however often the weights are placed anew.
TEST(WeightsPlaceParts, ATableOfTokensStaysWhereItIs) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 2});
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(testing::tiny_model("gemma4e"));
  Weights weights = Weights::reserve(*checkpoint, *device, {.dtype = DType::kBF16});
  const uint64_t all = weights.bytes();
  EXPECT_GT(weights.host_bytes(), 0u);
  for (const int64_t layers : {1, 0, 2}) {
    weights.release();
    weights.allocate(*device, {.host_layers = layers});
    uint64_t left = 0;
    for (int64_t i = weights.layer_count() - layers; i < weights.layer_count(); ++i) left += weights.layer_bytes(i);
    EXPECT_EQ(weights.bytes(), all - left) << layers;
  }
}

}  // namespace
}  // namespace headrace
