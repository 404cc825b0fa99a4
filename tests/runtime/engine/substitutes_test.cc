// Substitutes of weights: partial steps multiply layers of fewer bits, and move nothing over the link; the text is that
// of the exact weights, beside rows in every tier, drafts, pending trees, saved prefixes and kept rows.
#include "runtime/model/substitutes.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cache/minimum_budgets.h"
#include "runtime/engine/engine.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/placed_weights.h"
#include "tests/support/refusal.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing_support::refusal_of;

// ---- What is there --------------------------------------------------------------------------------------------------

// Rows of 256, so that Q4_K is a substitute.
std::unique_ptr<Checkpoint> wide_model(size_t layers = 6) {
  ModelConfig config = open_checkpoint(testing::tiny_model("llama31"))->config();
  config.layers.resize(layers, config.layers.front());
  config.hidden = 256;
  for (LayerSpec& layer : config.layers) layer.ffn.width = 512;
  return make_random_checkpoint("wide", config, 0);
}

std::vector<WeightType> types_of(const Weights& weights) {
  std::vector<WeightType> types;
  for (const auto& each : weights.possible_substitutes()) types.push_back(each->type());
  return types;
}

TEST(Substitutes, AreTheTypesThatMakeEveryLayerSmaller) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 2});
  const auto of = [](const Checkpoint& checkpoint, DType dtype) {
    return types_of(Weights::place(checkpoint, Backend::kCpu, {.dtype = dtype}));
  };
  const auto wide = wide_model();
  EXPECT_EQ(of(*wide, DType::kBF16),
            (std::vector<WeightType>{WeightType::kQ8_0, WeightType::kQ6K, WeightType::kQ5K, WeightType::kQ4K}));
  // Rows of 64 are Q8_0 whatever is asked for; a layer of experts has none.
  EXPECT_EQ(of(*open_checkpoint(testing::tiny_model("llama31")), DType::kBF16), std::vector{WeightType::kQ8_0});
  EXPECT_TRUE(of(*open_checkpoint(testing::tiny_model("qwen3moe")), DType::kBF16).empty());
  // Of a model that is loaded in fewer bits, those of still fewer.
  EXPECT_EQ(types_of(Weights::place(*wide, Backend::kCpu, {DType::kBF16, WeightPolicy::kQ5K})),
            std::vector{WeightType::kQ4K});
  EXPECT_TRUE(Weights::place(*wide, Backend::kCuda, {.dtype = DType::kF16}).possible_substitutes().empty());
}

// The layers of a model that loads as Q4_K are the substitutes of the same model in bf16.
TEST(Substitutes, HaveTheWeightsThatLoadingQuantises) {
  const std::unique_ptr<Device> device = open_device({.choice = DeviceChoice::kCpu, .threads = 2});
  const auto wide = wide_model();
  Weights exact = Weights::place(*wide, Backend::kCpu, {.dtype = DType::kBF16});
  exact.allocate(*device, {.host_layers = 4, .substitute = WeightType::kQ4K});
  ASSERT_TRUE(exact.load(*wide, *device, nullptr, nullptr));
  Weights quantised = Weights::reserve(*wide, *device, {DType::kBF16, WeightPolicy::kQ4K});
  ASSERT_TRUE(quantised.load(*wide, *device, nullptr, nullptr));
  EXPECT_GT(exact.substitute_bytes(), 0u);
  for (int64_t i = 0; i < 6; ++i) {
    const Weight& matrix = exact.partial_layer(i).down;
    if (i < 2) {
      EXPECT_EQ(&exact.partial_layer(i), &exact.layer(i));
      continue;
    }
    const Weight& same = quantised.layer(i).down;
    ASSERT_EQ(matrix.parts[0].type, WeightType::kQ4K);
    ASSERT_EQ(same.parts[0].type, WeightType::kQ4K);
    EXPECT_EQ(std::memcmp(matrix.parts[0].data, same.parts[0].data, stored_bytes(matrix)), 0) << i;
  }
  const uint64_t all = exact.bytes();
  exact.set_substitute(*device, std::nullopt);
  EXPECT_TRUE(exact.loaded());
  EXPECT_LT(exact.bytes(), all);
  exact.set_substitute(*device, WeightType::kQ8_0);
  EXPECT_FALSE(exact.loaded());  // the exact weights are not read again
  ASSERT_TRUE(exact.load(*wide, *device, nullptr, nullptr));
  EXPECT_EQ(exact.substitute(), WeightType::kQ8_0);
}

// ---- The link -------------------------------------------------------------------------------------------------------

class SubstitutesLink : public ::testing::TestWithParam<DeviceChoice> {};
INSTANTIATE_TEST_SUITE_P(Devices, SubstitutesLink, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

// A refresh brings each layer once, for the pass after it; partial steps bring nothing.
TEST_P(SubstitutesLink, IsIdleInPartialSteps) {
  LoadedModel model(testing::tiny_model("llama31"), DType::kBF16, GetParam());
  const int64_t layers = model.weights.layer_count();
  SessionOptions options = model.options(400, 60);
  options.kv = KvMode::kDevice;
  options.weights = WeightsPlace::kAuto;
  options.partial = {.shape = {.exact = true}};
  options.substitute = WeightType::kQ8_0;
  model.weights.release();
  model.weights.allocate(*model.device, {.host_layers = layers, .substitute = WeightType::kQ8_0});
  ASSERT_TRUE(model.weights.load(*model.checkpoint, *model.device, nullptr, nullptr));
  const auto session = model.session(options);
  uint64_t pass = 0, smallest = UINT64_MAX;
  for (int64_t i = 0; i < layers; ++i) {
    pass += model.weights.layer_bytes(i);
    smallest = std::min(smallest, model.weights.layer_bytes(i));
  }
  EXPECT_EQ(session->plan().host_weights_bytes, pass);
  EXPECT_EQ(session->plan().substitute_bytes, model.weights.substitute_bytes());
  EXPECT_EQ(session->plan().all_vram_bytes(), session->plan().vram_bytes + session->plan().substitute_bytes);
  int32_t root = session->prefill(testing::made_up_ids(400, 512), nullptr, nullptr).value();
  uint64_t before = 0;
  const auto crossed = [&] {
    const uint64_t now = model.device->bytes_over(Link::kHostToDevice);
    return now - std::exchange(before, now);
  };
  crossed();
  Tree tree;
  std::vector<int32_t> pending;
  for (int round = 0; round < 3; ++round) {
    for (int step = 0; step < 5; ++step) {
      tree.reset(root);
      const int32_t sample = session->verify(tree, StepMode::kPartial)[0];
      session->commit({.nodes = {0}, .next = sample});
      pending.push_back(root);
      root = sample;
      EXPECT_LT(crossed(), smallest) << round << ", " << step;
    }
    tree.reset(pending[0]);
    for (size_t i = 1; i < pending.size(); ++i) tree.add(pending[i], static_cast<int32_t>(i) - 1);
    root = session->verify(tree, StepMode::kRefresh)[0];
    session->commit({.nodes = {0}, .next = root});
    const uint64_t refresh = crossed();
    EXPECT_GE(refresh, pass);
    EXPECT_LT(refresh, pass + smallest);
    pending.clear();
  }
}

// A partial step on the full KV has the bits of a full step, but for its weights.
TEST_P(SubstitutesLink, PartialStepsOnTheFullKvHaveTheBitsOfFullSteps) {
  for (const char* const name : {"llama31", "qwen35", "gemma3"}) {
    const LoadedModel model(testing::tiny_model(name), DType::kBF16, GetParam());
    for (const int64_t prompt : {100, 1000}) {  // the latter crosses row 1,024
      SessionOptions options = model.options(prompt, 60);
      options.kv = KvMode::kDevice;
      const std::vector<int32_t> ids = testing::made_up_ids(prompt, 320);
      std::vector<std::vector<float>> expected;
      const std::vector<int32_t> tokens = testing::decode_plainly(*model.session(options), ids, 40, &expected);
      options.partial = {.shape = {.exact = true}};
      const auto session = model.session(options);
      int32_t root = session->prefill(ids, nullptr, nullptr).value();
      Tree tree;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) {
        ASSERT_EQ(root, tokens[i]) << name << ", " << i;
        tree.reset(root);
        root = session->verify(tree, StepMode::kPartial)[0];
        EXPECT_EQ(session->logits(1), expected[i + 1]) << name << ", " << i;
        session->commit({.nodes = {0}, .next = root});
      }
    }
  }
}

// ---- The text -------------------------------------------------------------------------------------------------------

class SubstitutesText : public testing::DraftedText {
 protected:
  EngineOptions options(bool substitutes) const {
    EngineOptions o = DraftedText::options(substitutes ? WeightsPlace::kHost : WeightsPlace::kDevice);
    o.dtype = DType::kBF16;
    if (substitutes) o.substitute = {.automatic = false, .type = WeightType::kQ8_0};
    return o;
  }
  static GenerateOptions run(float temperature, KvMode kv) {
    return {.max_tokens = 40,
            .kv = kv,
            .sampling = {.temperature = temperature, .top_p = 0.95f, .seed = 3},
            .ignore_eos = true};
  }
  static GenerateOptions plain(GenerateOptions run) {
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    return run;
  }
};
// In a GPU's layout the tiny hybrid's layers are no larger than their substitutes.
std::vector<testing::Drafted> with_substitutes_of_layers() {
  std::vector<testing::Drafted> all = testing::each_draft();
  std::erase_if(all, [](const testing::Drafted& one) {
    return one.device == DeviceChoice::kCuda && one.draft == SpecType::kMtp;
  });
  return all;
}
INSTANTIATE_TEST_SUITE_P(Drafts, SubstitutesText, ::testing::ValuesIn(with_substitutes_of_layers()),
                         testing::drafted_name);

// Whatever partial steps read: the full KV itself, a copy or blocks; prompts that are shorter than any copy, too.
TEST_P(SubstitutesText, IsThatOfTheExactWeights) {
  Engine there(options(true)), usual(options(false));
  for (const int64_t tokens : {60, 900}) {
    const std::vector<int32_t> ids = testing::repeated_ids(tokens, 320);
    for (const float temperature : {0.0f, 0.8f}) {
      const GenerateOptions on_device = run(temperature, KvMode::kDevice);
      const std::vector<int32_t> expected = usual.generate(ids, plain(on_device), nullptr).token_ids;
      for (const PartialKind kind :
           {PartialKind::kAuto, PartialKind::kInt8, PartialKind::kInt4, PartialKind::kBlocks}) {
        for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
          if (kind == PartialKind::kInt4 && !copy_type_fits(DType::kInt4, usual.config().attention().head_dim))
            continue;
          GenerateOptions lossless = run(temperature, kv);
          lossless.verify = VerifyOptions{.mode = VerifyMode::kAuto, .partial = kind};
          if (kind == PartialKind::kBlocks) lossless.verify->budget = 64;
          const std::string what = str(tokens, " tokens, T ", temperature, ", ", partial_kind_name(kind),
                                       kv == KvMode::kHost ? ", rows in host memory" : "");
          const GenerateResult said = there.generate(ids, lossless, nullptr);
          ASSERT_EQ(said.token_ids, expected) << what;
          const bool serves = tokens == 900 || (kind == PartialKind::kAuto && kv == KvMode::kDevice);
          EXPECT_EQ(said.plan.substitutes(), serves) << what;
          EXPECT_EQ(said.speculation.of(StepMode::kPartial).steps > 0, serves) << what;
          if (!serves || kv == KvMode::kHost) continue;
          // Each refresh and full step streams the weights; the ring is ahead by two layers.
          const auto& steps = said.speculation;
          const auto passes =
              static_cast<uint64_t>(steps.of(StepMode::kRefresh).steps + steps.of(StepMode::kFull).steps);
          EXPECT_LT(said.transfers.decode_h2d_bytes, (passes + 1) * said.plan.host_weights_bytes +
                                                         static_cast<uint64_t>(said.timings.decode_steps) * 64 * kKiB)
              << what;
        }
      }
      if (GetParam().draft == SpecType::kMtp) continue;  // its pending tokens are a chain
      GenerateOptions tree = on_device;
      tree.pending = {.width = 6, .grown = 60, .nodes = 80, .least = 0.001};
      EXPECT_EQ(there.generate(ids, tree, nullptr).token_ids, expected) << tokens << ", a tree, T " << temperature;
    }
  }
}

// Substitutes come with a run that has partial steps, and leave with one that has none.
TEST_P(SubstitutesText, IsTheSameWhateverTheEngineDidBefore) {
  Engine there(options(true)), usual(options(false));
  const std::vector<int32_t> ids = testing::repeated_ids(700, 320);
  const GenerateOptions lossless = run(0.8f, KvMode::kDevice);
  const std::vector<int32_t> expected = usual.generate(ids, plain(lossless), nullptr).token_ids;
  for (const bool substitutes : {true, false, true}) {
    const GenerateResult said = there.generate(ids, substitutes ? lossless : plain(lossless), nullptr);
    EXPECT_EQ(said.token_ids, expected);
    EXPECT_EQ(said.plan.substitutes(), substitutes);
    EXPECT_GT(said.plan.host_weights_bytes, 0u);
  }
}

TEST_P(SubstitutesText, IsTheSameAfterSavedPrefixesAndKeptRows) {
  const GenerateOptions lossless = run(0.8f, KvMode::kAuto);
  testing::expect_same_after_saved_prefixes_and_kept_rows(
      {options(true), lossless}, {options(false), plain(lossless)},
      [](const GenerateResult& said) { EXPECT_TRUE(said.plan.substitutes()); });
}

// Substitutes that are wrong often: many tokens are overturned, and the text is right.
TEST(SubstitutesOfFourBits, AreOverturned) {
  EngineOptions options;
  options.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  options.dtype = DType::kBF16;
  options.want_tokenizer = false;
  options.draft.type = SpecType::kNone;
  Engine usual(options, wide_model());
  options.weights_place = WeightsPlace::kHost;
  options.substitute = {.automatic = false, .type = WeightType::kQ4K};
  Engine there(options, wide_model());
  const std::vector<int32_t> ids = testing::made_up_ids(100, 512);
  VerifyOutcome outcome;
  for (const int64_t interval : {int64_t{8}, int64_t{20}, kAutoInterval}) {
    GenerateOptions run{.max_tokens = 100, .sampling = {.temperature = 0.8f, .seed = 5}, .ignore_eos = true};
    run.verify = VerifyOptions{.mode = VerifyMode::kFull};
    const std::vector<int32_t> expected = usual.generate(ids, run, nullptr).token_ids;
    run.verify = VerifyOptions{.mode = VerifyMode::kLossless, .interval = interval};
    const GenerateResult said = there.generate(ids, run, nullptr);
    EXPECT_EQ(said.token_ids, expected) << interval;
    EXPECT_TRUE(said.plan.substitutes());
    outcome.add(said.speculation.verify_outcome);
  }
  EXPECT_GT(outcome.rejected, 3);
  EXPECT_GT(outcome.judged, outcome.rejected);
}

// ---- The choice -----------------------------------------------------------------------------------------------------

EngineOptions cpu_options(const char* model) {
  EngineOptions o;
  o.model = testing::tiny_model(model);
  o.device = {.choice = DeviceChoice::kCpu, .threads = 2};
  o.dtype = DType::kBF16;
  o.want_tokenizer = false;
  o.draft.type = SpecType::kNone;
  o.weights_place = WeightsPlace::kHost;
  o.substitute = {.automatic = false, .type = WeightType::kQ8_0};
  return o;
}

TEST(SubstitutesChoice, RefusesWhatCannotBe) {
  const ErrorInfo experts = refusal_of(ExitCode::kUsage, [] { Engine engine(cpu_options("qwen3moe")); });
  EXPECT_EQ(experts.where, "--weights-substitute");
  EXPECT_NE(experts.what.find("has experts"), std::string::npos) << experts.what;
  EngineOptions four = cpu_options("llama31");
  four.substitute.type = WeightType::kQ4K;
  const ErrorInfo small = refusal_of(ExitCode::kUsage, [&] { Engine engine(four); });
  EXPECT_NE(small.what.find("Q4_K takes no less"), std::string::npos) << small.what;
  Engine engine(cpu_options("llama31"));
  GenerateOptions run{.max_tokens = 5};
  run.verify = VerifyOptions{.mode = VerifyMode::kApproximate};
  const std::vector<int32_t> ids = testing::made_up_ids(400, 512);
  for (const bool plans : {false, true}) {
    const ErrorInfo approximate = refusal_of(
        ExitCode::kUsage, [&] { plans ? (void)engine.plan(400, run) : (void)engine.generate(ids, run, nullptr); });
    EXPECT_EQ(approximate.where, "--weights-substitute");
    EXPECT_NE(approximate.what.find("--verify approximate"), std::string::npos) << approximate.what;
  }
}

// Full runs, plain decoding, and runs whose weights stay have none.
TEST(SubstitutesChoice, IsForRunsWithPartialStepsAlone) {
  Engine engine(cpu_options("llama31"));
  GenerateOptions run{.max_tokens = 5};
  EXPECT_TRUE(engine.plan(400, run).memory.substitutes());
  run.speculate = false;
  EXPECT_FALSE(engine.plan(400, run).memory.substitutes());
  run.speculate = true;
  run.verify = VerifyOptions{.mode = VerifyMode::kFull};
  EXPECT_FALSE(engine.plan(400, run).memory.substitutes());
  run.verify.reset();
  EngineOptions stays = cpu_options("llama31");
  stays.weights_place = WeightsPlace::kAuto;
  EXPECT_FALSE(Engine(stays).plan(400, run).memory.substitutes());
  stays = cpu_options("llama31");
  stays.substitute.type.reset();
  EXPECT_FALSE(Engine(stays).plan(400, run).memory.substitutes());
  EXPECT_TRUE(Engine(stays).plan(400, run).memory.streams_weights());
}

MachineRates rates(double link) {
  return {.to_device_gb_per_s = link,
          .to_host_gb_per_s = link,
          .weights_gb_per_s = 15,
          .kv_gb_per_s = 15,
          .product_tflop_per_s = 0.01,
          .attention_tflop_per_s = 0.01,
          .queries_tflop_per_s = 0.01};
}

// By the predicted speed: substitutes pay where the link is slow. Nothing is chosen if no speed is known.
TEST(SubstitutesChoice, IsTheFasterRun) {
  EngineOptions options = cpu_options("llama31");
  options.substitute = {};
  const GenerateOptions run{.max_tokens = 50};
  EXPECT_FALSE(Engine(options).plan(400, run).memory.substitutes());
  for (const double link : {0.02, 2000.0}) {
    options.rates_of = [link](const Device&) { return rates(link); };
    Engine engine(options);
    const RunPlan plan = engine.plan(400, run);
    EXPECT_EQ(plan.memory.substitutes(), link < 1);
    const Prediction predicted = predict(plan, rates(link));
    EXPECT_GT(predicted.full.streamed_weight_bytes, 0u);
    if (!plan.memory.substitutes()) continue;
    EXPECT_EQ(plan.substitute, WeightType::kQ8_0);
    EXPECT_EQ(plan.verify, VerifyMode::kLossless);
    EXPECT_EQ(predicted.partial.streamed_weight_bytes, 0u);
    EXPECT_EQ(predicted.partial.link_bytes, 0u);
    EXPECT_EQ(predicted.refresh.streamed_weight_bytes, plan.memory.host_weights_bytes);
    EXPECT_LT(predicted.partial.weight_bytes, predicted.full.weight_bytes);
  }
}

// An offered value fits, and one page less does not.
TEST(SubstitutesChoice, OffersWhatFits) {
  EngineOptions options = cpu_options("llama31");
  options.weights_place = WeightsPlace::kAuto;
  options.substitute.type = WeightType::kQ4K;
  options.host_embedding = false;
  options.draft.type = SpecType::kNone;
  options.device.vram_bytes = 700 * kKiB;
  const GenerateOptions run{.max_tokens = 5};
  for (int tries = 0;; ++tries) {
    ASSERT_LT(tries, 20);
    try {
      Engine engine(options, wide_model(40));
      const RunPlan plan = engine.plan(400, run);
      EXPECT_TRUE(plan.memory.substitutes()) << plan.memory.to_string();
      EXPECT_LE(plan.memory.all_vram_bytes(), options.device.vram_bytes);
      options.device.vram_bytes -= kPageBytes;
      EXPECT_THROW(Engine(options, wide_model(40)).plan(400, run), Error);
      break;
    } catch (const DoesNotFit& refused) {
      ASSERT_GT(refused.minimum().vram_bytes, 0u) << refused.what();
      options.device.vram_bytes += refused.minimum().vram_bytes - refused.input().vram_free;
    } catch (const Error& error) {  // not even a ring
      ASSERT_EQ(error.code(), ExitCode::kDoesNotFit) << error.what();
      options.device.vram_bytes += 256 * kKiB;
    }
  }
}

}  // namespace
}  // namespace headrace
