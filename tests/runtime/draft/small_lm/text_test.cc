// A small model as a draft: the text is that of plain decoding, and where the draft knows the target, it comes in few
// passes.
#include <gtest/gtest.h>

#include "runtime/draft/cache.h"
#include "runtime/draft/open/open_draft.h"
#include "tests/support/speculation.h"

namespace headrace {
namespace {

using testing::LoadedModel;
using testing::tiny_model;

constexpr int64_t kTokens = 60;
constexpr size_t kPrompt = 490;  // decoding crosses a segment's end

class SimpleText : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  LoadedModel load(const std::string& name) const {
    return LoadedModel(tiny_model(name), std::get<1>(GetParam()), std::get<0>(GetParam()));
  }
  static std::unique_ptr<DraftModel> draft_of(const LoadedModel& target, const std::string& name, const char* tree) {
    return open_draft({.type = SpecType::kSimple, .model = tiny_model(name), .tree = parse_tree(tree)}, *target.device,
                      target.checkpoint->config(), target.weights);
  }

  const std::vector<int32_t> prompt_ = testing::made_up_ids(kPrompt, 512);
};

// Draft and target say the same: only rounding may tell them apart.
TEST_P(SimpleText, AModelDraftsForItself) {
  const bool f32 = std::get<1>(GetParam()) == DType::kF32;
  for (const char* name : {"qwen3", "llama-yarn", "qwen25"}) {
    const LoadedModel model = load(name);
    for (const SamplingSettings& sampling : {SamplingSettings{}, SamplingSettings{.temperature = 0.7f, .seed = 3}}) {
      SessionOptions run = model.options(kPrompt, kTokens);
      run.sampling = sampling;
      const std::vector<int32_t> plain = testing::decode_plainly(*model.session(run), prompt_, kTokens);
      const auto chain = draft_of(model, name, "chain:4"), deep = draft_of(model, name, "eagle2:30,4,6");
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        run.kv = kv;
        const testing::Speculated said = testing::speculate(model, *chain, run, prompt_, kTokens);
        EXPECT_EQ(said.tokens, plain) << name << ", temperature " << sampling.temperature;
        EXPECT_GT(said.tau(), f32 ? 3.8 : 3.0) << name << ", temperature " << sampling.temperature;
        const testing::Speculated tree = testing::speculate(model, *deep, run, prompt_, kTokens);
        EXPECT_EQ(tree.tokens, plain) << name << ", temperature " << sampling.temperature;
        EXPECT_GT(tree.tau(), 1.5) << name << ", temperature " << sampling.temperature;  // so flat a model: wide trees
      }
    }
  }
}

// llama-linear has theta 10,000 and linear scaling by 4. With another RoPE it drafts other tokens, and fewer are right.
TEST_P(SimpleText, RopeFlagsTakeThePlaceOfItsOwn) {
  const LoadedModel model = load("llama-linear");
  const std::vector<int32_t> plain =
      testing::decode_plainly(*model.session(model.options(kPrompt, kTokens)), prompt_, kTokens);
  const auto accepted = [&](const RopeOverrides& rope) {
    const auto draft = open_draft(
        {.type = SpecType::kSimple, .model = tiny_model("llama-linear"), .rope = rope, .tree = parse_tree("chain:4")},
        *model.device, model.checkpoint->config(), model.weights);
    const testing::Speculated said =
        testing::speculate(model, *draft, model.options(kPrompt, kTokens), prompt_, kTokens);
    EXPECT_EQ(said.tokens, plain);
    return said.accepted;
  };
  const int64_t own = accepted({});
  EXPECT_EQ(accepted({.scaling = RopeScaling::kLinear, .factor = 4, .theta = 10000}), own);
  EXPECT_LT(accepted({.scaling = RopeScaling::kNone}), own);
  EXPECT_LT(accepted({.factor = 16}), own);
  EXPECT_LT(accepted({.theta = 100}), own);
}

TEST_P(SimpleText, AModelThatKnowsNothingOfItsTarget) {
  const LoadedModel model = load("llama2");
  const std::vector<int32_t> plain =
      testing::decode_plainly(*model.session(model.options(kPrompt, kTokens)), prompt_, kTokens);
  for (const char* tree : {"chain:1", "beams:4,8,8", "opt:20,6,0.5", "eagle2:16,3,4"}) {
    const auto draft = draft_of(model, "qwen3", tree);
    const testing::Speculated said =
        testing::speculate(model, *draft, model.options(kPrompt, kTokens), prompt_, kTokens);
    EXPECT_EQ(said.tokens, plain) << tree;
    EXPECT_LT(said.tau(), 1) << tree;
  }
}

TEST_P(SimpleText, PromptsOfAnyLength) {
  const LoadedModel model = load("qwen3");
  const auto draft = draft_of(model, "qwen3", "chain:3");
  for (const int64_t length : {1, 2, 3, 5, 63, 64, 65, 129}) {
    const std::vector<int32_t> prompt = testing::made_up_ids(length, 512);
    const std::vector<int32_t> plain = testing::decode_plainly(*model.session(model.options(length, 20)), prompt, 20);
    EXPECT_EQ(testing::speculate(model, *draft, model.options(length, 20), prompt, 20).tokens, plain) << length;
  }
}

// The window moves on several times, in the prompt and after it. The draft goes by its own positions, but draws its
// noise by the target's: with it, the two agree far more often than chance would have it.
TEST_P(SimpleText, AWindow) {
  const LoadedModel model = load("llama31");
  const std::vector<int32_t> prompt = testing::made_up_ids(700, 512);
  const auto draft = open_draft({.type = SpecType::kSimple,
                                 .model = tiny_model("llama31"),
                                 .window = kMinDraftWindow,
                                 .tree = parse_tree("beams:3,3,3")},
                                *model.device, model.checkpoint->config(), model.weights);
  for (const SamplingSettings& sampling : {SamplingSettings{}, SamplingSettings{.temperature = 1.0f, .seed = 5}}) {
    SessionOptions run = model.options(700, 200);
    run.sampling = sampling;
    const std::vector<int32_t> plain = testing::decode_plainly(*model.session(run), prompt, 200);
    const testing::Speculated said = testing::speculate(model, *draft, run, prompt, 200);
    EXPECT_EQ(said.tokens, plain) << sampling.temperature;
    EXPECT_GT(said.tau(), 1) << sampling.temperature;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SimpleText, testing::devices_and_types(), testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
