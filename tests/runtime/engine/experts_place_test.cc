// Where a mixture model's experts are cannot matter: a slab of them on the device, which fetches what a step lacks,
// gives the same bits and the same text as all of them there, whatever the slab's slots are, and also where a pass uses
// more experts than it has.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/placed_weights.h"
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
  float temperature;
};

class ExpertsPlaces : public ::testing::TestWithParam<std::tuple<DeviceChoice, Case>> {};

TEST_P(ExpertsPlaces, GiveTheSameBits) {
  constexpr int64_t kPrompt = 300, kTokens = 12;
  const auto& [choice, c] = GetParam();
  LoadedModel model(testing::tiny_model(c.model), c.dtype, choice);
  const int64_t layers = model.weights.layer_count();
  const ExpertsSpec& spec = *model.checkpoint->config().layers.back().ffn.experts;
  SessionOptions options = model.options(kPrompt, kTokens);
  options.sampling = {.temperature = c.temperature, .top_p = 0.95f, .seed = 7};
  options.prefill_group = 128;
  options.kv = KvMode::kDevice;
  const SaidInBudget usual = decode_in_budget(model, options, kTokens);
  EXPECT_EQ(usual.plan.host_weights_layers, 0);
  EXPECT_EQ(usual.use.used, 0u);
  options.weights = WeightsPlace::kAuto;  // beside the experts that have left
  for (const int64_t in_host : {int64_t{1}, layers}) {
    model.weights.release();
    model.weights.allocate(*model.device, {.host_layers = in_host, .experts_alone = true});
    ASSERT_TRUE(model.weights.load(*model.checkpoint, *model.device, nullptr, nullptr));
    uint64_t part = 0;
    int64_t with_experts = 0;
    for (int64_t layer = layers - in_host; layer < layers; ++layer) {
      part += model.weights.expert_part_bytes(layer);
      with_experts += model.weights.expert_part_bytes(layer) > 0 ? 1 : 0;
    }
    // One slot: a row's experts take rounds. As many as a row uses; more; all, which are fetched once.
    for (const int64_t slots : {int64_t{1}, spec.used, spec.used + 1, spec.count}) {
      options.ring.expert_slots = slots;
      const SaidInBudget there = decode_in_budget(model, options, kTokens);
      EXPECT_EQ(there.tokens, usual.tokens) << in_host << " layers, " << slots << " slots";
      EXPECT_EQ(there.logits, usual.logits) << in_host << " layers, " << slots << " slots";
      EXPECT_TRUE(there.plan.host_experts_alone);
      EXPECT_EQ(there.plan.host_weights_layers, in_host);
      EXPECT_EQ(there.plan.host_weights_bytes, part);
      EXPECT_EQ(there.plan.expert_slots, slots);
      const auto used = static_cast<uint64_t>((kTokens - 1) * with_experts * spec.used);
      EXPECT_EQ(there.use.used, used);
      EXPECT_GT(there.use.fetched, 0u);
      EXPECT_GT(there.use.fetched_bytes, 0u);
      if (slots == spec.count) {
        EXPECT_LE(there.use.fetched, static_cast<uint64_t>(with_experts * spec.count));
      } else {
        EXPECT_LE(there.use.fetched, used);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, ExpertsPlaces,
    ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                       ::testing::Values(Case{"qwen3moe", DType::kF32, 0.0f}, Case{"qwen3moe", DType::kBF16, 0.9f},
                                         Case{"qwen3moe", testing::kReadInInt8, 0.9f},
                                         Case{"qwen35moe", DType::kBF16, 0.9f},
                                         Case{"qwen35moe", testing::kReadInInt8, 0.9f},
                                         Case{"gemma4moe", DType::kBF16, 0.9f}, Case{"gptoss", DType::kBF16, 0.9f},
                                         Case{"gptoss-mxfp4", testing::kReadInInt8, 0.9f})),
    [](const auto& given) {
      const Case& c = std::get<1>(given.param);
      std::string name = testing::device_name(std::get<0>(given.param)) + "_" + c.model + "_" + c.dtype.name();
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// ---- The text -------------------------------------------------------------------------------------------------------

using testing::Drafted;

class ExpertsPlaceText : public testing::DraftedText {
 protected:
  EngineOptions options(WeightsPlace place, int64_t slots = 0) const {
    EngineOptions o = DraftedText::options(place);
    o.ring.expert_slots = slots;
    return o;
  }
  static GenerateOptions run(VerifyMode verify, KvMode kv) { return DraftedText::run(verify, kv, 30); }
};
std::vector<Drafted> drafted_experts() {
  std::vector<Drafted> all;
  for (const DeviceChoice device : testing::session_devices()) {
    all.push_back({device, "qwen3moe", SpecType::kNone});
    all.push_back({device, "qwen3moe", SpecType::kNgram});
    all.push_back({device, "qwen35moe", SpecType::kMtp});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Drafts, ExpertsPlaceText, ::testing::ValuesIn(drafted_experts()), testing::drafted_name);

// Trees, partial steps and refreshes, with rows in either place. A tree uses more experts than there are slots.
TEST_P(ExpertsPlaceText, IsTheSameInEveryMode) {
  Engine usual(options(WeightsPlace::kDevice));
  const std::vector<int32_t> ids = testing::repeated_ids(700, 320);
  for (const int64_t slots : {1, 3, 0}) {
    Engine there(options(WeightsPlace::kHost, slots));
    for (const VerifyMode verify : {VerifyMode::kFull, VerifyMode::kLossless}) {
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        const GenerateResult result = there.generate(ids, run(verify, kv), nullptr);
        EXPECT_TRUE(result.plan.host_experts_alone);
        EXPECT_GT(result.experts.fetched, 0u);
        EXPECT_GE(result.experts.used, result.experts.fetched);
        EXPECT_GE(result.transfers.decode_h2d_bytes, result.experts.fetched_bytes);
        EXPECT_EQ(result.token_ids, usual.generate(ids, run(verify, kv), nullptr).token_ids)
            << verify_mode_name(verify) << ", " << (kv == KvMode::kHost ? "host" : "device") << ", " << slots;
      }
    }
  }
}

TEST_P(ExpertsPlaceText, IsTheSameAfterSavedPrefixesAndKeptRows) {
  const GenerateOptions plain = run(VerifyMode::kFull, KvMode::kAuto);
  testing::expect_same_after_saved_prefixes_and_kept_rows({options(WeightsPlace::kHost, 3), plain},
                                                          {options(WeightsPlace::kDevice), plain});
}

// ---- The choice -----------------------------------------------------------------------------------------------------

class ExpertsPlaceAuto : public testing::PlaceByBudget {
 protected:
  static EngineOptions options() {
    EngineOptions o = PlaceByBudget::options("qwen3moe");
    o.dtype = DType::kF32;
    return o;
  }
};
// On a GPU the tiny model's layers are less than a granule of what a run takes beside them.
INSTANTIATE_TEST_SUITE_P(Devices, ExpertsPlaceAuto, ::testing::Values(DeviceChoice::kCpu),
                         [](const auto& given) { return testing::device_name(given.param); });

// Twelve layers of 16 experts, whose weights take more than all else.
std::unique_ptr<Checkpoint> deep_mixture() {
  ModelConfig config = open_checkpoint(testing::tiny_model("qwen3moe"))->config();
  config.layers.resize(12, config.layers.back());
  for (LayerSpec& layer : config.layers) {
    layer.ffn.experts->count = 16;
    layer.ffn.experts->width = 512;
  }
  return make_random_checkpoint("deep", config, 0);
}

// What does not fit is experts, with a slab in whatever is free.
TEST_P(ExpertsPlaceAuto, ExpertsLeaveFirst) {
  const EngineOptions all = options();
  Engine whole(all, deep_mixture());
  const std::vector<int32_t> ids = testing::made_up_ids(700, 320);
  const GenerateResult usual = whole.generate(ids, run(), nullptr);
  EXPECT_EQ(usual.plan.host_weights_layers, 0);
  const uint64_t taken = open_device({.choice = GetParam()})->vram().used_bytes();
  const uint64_t weights = whole_pages(usual.memory.weights_bytes);
  EngineOptions small = all;
  small.device.vram_bytes = taken + weights + usual.plan.vram_bytes;
  EXPECT_EQ(Engine(small, deep_mixture()).plan(700, run()).memory.host_weights_layers, 0);
  int64_t slots = 17;
  for (const uint64_t sixteenths : {15, 12, 8, 5, 3}) {
    small.device.vram_bytes = taken + usual.plan.vram_bytes + weights * sixteenths / 16;
    Engine engine(small, deep_mixture());
    const GenerateResult result = engine.generate(ids, run(), nullptr);
    EXPECT_EQ(result.token_ids, usual.token_ids) << sixteenths;
    EXPECT_LE(result.memory.vram_peak_bytes, small.device.vram_bytes) << sixteenths;
    EXPECT_TRUE(result.plan.host_experts_alone) << sixteenths;
    EXPECT_EQ(result.plan.resident_segments, result.plan.segments) << "rows stay";
    if (result.plan.host_weights_layers == 12) {
      EXPECT_LE(result.plan.expert_slots, slots) << sixteenths;
      slots = result.plan.expert_slots;
    }
    EXPECT_GE(result.plan.expert_slots, 2) << sixteenths;
    // The next run has the weights where they are.
    EXPECT_EQ(engine.generate(ids, run(), nullptr).token_ids, usual.token_ids);
    EXPECT_NE(result.plan.to_string().find("slab of experts"), std::string::npos) << result.plan.to_string();
  }
}

// All experts of all layers, whatever would fit, as llama.cpp's --n-cpu-moe has them; the slab takes what is free.
TEST_P(ExpertsPlaceAuto, HostPutsAllExpertsThere) {
  EngineOptions o = options();
  o.weights_place = WeightsPlace::kHost;
  const MemoryPlan plan = Engine(o, deep_mixture()).plan(50, run()).memory;
  EXPECT_TRUE(plan.host_experts_alone);
  EXPECT_EQ(plan.host_weights_layers, 12);
  EXPECT_EQ(plan.expert_slots, 16);
  EXPECT_GT(plan.device_weights_bytes, 0u);
}

}  // namespace
}  // namespace headrace
