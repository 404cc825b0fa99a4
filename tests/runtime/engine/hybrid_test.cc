// Runs of a model most of whose layers have a recurrent state: what a draft guesses changes no text, on each device,
// with each kind of rows and wherever they are; and what such a model cannot do yet is refused.
#include <gtest/gtest.h>

#include <memory>
#include <tuple>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/model/files/shapes.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

constexpr int64_t kAnswer = 150;  // over the end of a chunk

EngineOptions options_of(DeviceChoice device, const char* model = "qwen35") {
  EngineOptions o;
  o.model = testing::tiny_model(model);
  o.device = {.choice = device, .threads = 2};
  o.want_tokenizer = false;
  return o;
}

class HybridText : public ::testing::TestWithParam<std::tuple<DeviceChoice, testing::RowsType, const char*>> {
 protected:
  EngineOptions options() const {
    const auto& [device, rows, model] = GetParam();
    EngineOptions o = options_of(device, model);
    o.dtype = testing::weights_type(rows);
    o.cache_type_k = o.cache_type_v = rows;
    o.prefill = rows.prefill();
    return o;
  }
};

TEST_P(HybridText, DraftsChangeNoToken) {
  Engine plain(options());
  std::vector<std::unique_ptr<Engine>> drafts;
  for (const DraftOptions& draft :
       {DraftOptions{.type = SpecType::kNgram}, DraftOptions{.type = SpecType::kMtp},
        DraftOptions{.type = SpecType::kMtp, .look_up = true, .tree = parse_tree("opt:20,6,0.5")}}) {
    EngineOptions with_draft = options();
    with_draft.draft = draft;
    drafts.push_back(std::make_unique<Engine>(with_draft));
  }
  int64_t accepted = 0;
  for (const int64_t prompt : {1, 128, 700}) {
    const std::vector<int32_t> ids = testing::repeated_ids(prompt, 320);
    for (const float temperature : {0.0f, 0.8f}) {
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        GenerateOptions run{.max_tokens = kAnswer, .ignore_eos = true};
        run.kv = kv;
        run.sampling = {.temperature = temperature, .seed = 5};
        const GenerateResult expected = plain.generate(ids, run, nullptr);
        ASSERT_EQ(expected.token_ids.size(), static_cast<size_t>(kAnswer));
        for (const std::unique_ptr<Engine>& engine : drafts) {
          const GenerateResult result = engine->generate(ids, run, nullptr);
          EXPECT_EQ(result.token_ids, expected.token_ids)
              << prompt << " " << temperature << " " << result.speculation.type;
          accepted += result.speculation.type == "draft-mtp" ? result.speculation.accepted : 0;
        }
      }
    }
  }
  EXPECT_GT(accepted, 0);
}

INSTANTIATE_TEST_SUITE_P(Types, HybridText,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::ValuesIn(testing::row_types()),
                                            ::testing::Values("qwen35", "qwen35moe")),
                         [](const auto& given) {
                           return testing::device_name(std::get<0>(given.param)) + "_" +
                                  std::get<1>(given.param).name() + "_" + std::get<2>(given.param);
                         });

// Of headrace bench --shape: the states decay, so that nothing overflows in a long prompt. Logits that are not finite
// would end the run.
class HybridShape : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, HybridShape, ::testing::Values("qwen35", "qwen35moe"));
TEST_P(HybridShape, RandomWeightsGiveTokens) {
  Shape shape = find_shape(testing::tiny_model(GetParam()) + "/config.json");
  shape.config.max_positions = 8192;
  EngineOptions options = options_of(DeviceChoice::kCpu, GetParam());
  Engine engine(options, make_random_checkpoint(shape.name, shape.config, 1), open_device(options.device));
  const GenerateResult result =
      engine.generate(testing::made_up_ids(6000, 320), {.max_tokens = 40, .ignore_eos = true}, nullptr);
  EXPECT_EQ(result.token_ids.size(), 40u);
}

TEST(HybridRefusals, Drafts) {
  const EngineOptions plain = options_of(DeviceChoice::kCpu);
  EngineOptions own = plain;
  own.draft = {.type = SpecType::kSimple, .model = plain.model};
  testing_support::expect_error(ExitCode::kBadInput, plain.model, {"recurrent state", "cannot be drafts"},
                                [&] { const Engine refused(own); });
}

}  // namespace
}  // namespace headrace
