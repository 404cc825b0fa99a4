// The LongSpec layer on SmolLM2-64K: its trees against a plain PyTorch forward of the layer's equations in f32, the
// text against plain decoding, and how much of what it proposes is accepted. HEADRACE_TEST_SMOLLM2_64K names the
// target's directory, HEADRACE_TEST_MODELS the folder with longspec/.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/draft/open/open_draft.h"
#include "tests/support/golden.h"
#include "tests/support/speculation.h"

namespace headrace {
namespace {

using testing::LoadedModel;

class LongSpec : public ::testing::TestWithParam<testing::DeviceAndType> {
 protected:
  void SetUp() override {
    const char* const target = std::getenv("HEADRACE_TEST_SMOLLM2_64K");
    const char* const models = std::getenv("HEADRACE_TEST_MODELS");
    if (target == nullptr) GTEST_SKIP() << "HEADRACE_TEST_SMOLLM2_64K names no directory";
    if (models == nullptr) GTEST_SKIP() << "HEADRACE_TEST_MODELS names no folder with longspec/";
    model_.emplace(target, std::get<1>(GetParam()), std::get<0>(GetParam()));
    options_.type = SpecType::kLongSpec;
    options_.model = std::string(models) + "/longspec";
    ids_ = testing::read_golden(HEADRACE_TEST_DATA "/eagle3/golden/tree.safetensors").ids("input_ids");
  }

  std::unique_ptr<DraftModel> open(const char* tree) {
    options_.tree = parse_tree(tree);
    return open_draft(options_, *model_->device, model_->checkpoint->config(), model_->weights);
  }
  SessionOptions plain_run(int64_t count, const SamplingSettings& sampling) const {
    SessionOptions run = model_->options(static_cast<int64_t>(ids_.size()), count);
    run.sampling = sampling;
    return run;
  }

  std::optional<LoadedModel> model_;
  DraftOptions options_;
  std::vector<int32_t> ids_;
};

// What PyTorch gave: torch.nn.functional and the equations of runtime/draft/longspec/draft.cc, keys of the target from
// transformers. The self-attention sees the rows from the multiple of 64 on at which the window begins, as DraftCache
// keeps them.
struct Reference {
  size_t prompt;
  int64_t window;
  std::vector<int32_t> tokens, parents;
  std::vector<float> scores;
};
const Reference kReferences[] = {
    {500,
     512,
     {284, 260, 339, 346, 965, 550, 3060, 5248, 3543, 457, 2316, 3060, 28, 325, 820, 1928, 963, 1188, 3363, 284, 1270},
     {-1, 0, 0, 0, 0, 1, 2, 2, 2, 2, 3, 3, 4, 6, 6, 6, 6, 6, 8, 12, 5},
     {0.0f,     -1.8823f, -2.4364f, -3.0731f, -3.5643f, -5.4557f, -4.0936f, -4.7002f, -4.8031f, -5.4898f, -5.1483f,
      -5.4614f, -5.2983f, -6.4785f, -6.9837f, -7.0221f, -7.0235f, -7.0614f, -6.1257f, -6.8573f, -7.0003f}},
    {1287,
     512,
     {3489, 28, 30, 282, 29, 284, 564, 347, 527, 1046, 198, 378, 260, 392, 260, 339, 965, 502, 592, 761, 198},
     {-1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 5, 5, 5, 5, 5, 9, 9, 10},
     {0.0f,     -1.1364f, -1.6843f, -2.5463f, -3.1988f, -2.0554f, -4.4514f, -4.7612f, -4.8558f, -3.2603f, -3.8629f,
      -4.1801f, -3.5329f, -4.4141f, -4.538f,  -4.86f,   -5.5376f, -5.6598f, -5.3272f, -5.7441f, -3.9177f}},
    {1287,
     320,
     {3489, 28, 30, 282, 506, 284, 564, 347, 527, 1046, 198, 378, 260, 392, 260, 339, 965, 502, 592, 761, 198},
     {-1, 0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 3, 5, 5, 5, 5, 5, 9, 9, 10},
     {0.0f,     -1.1451f, -1.6738f, -2.5741f, -3.2128f, -2.0757f, -4.5247f, -4.7776f, -4.8077f, -3.1699f, -3.8988f,
      -4.1982f, -3.5646f, -4.2785f, -4.5684f, -4.855f,  -5.5741f, -5.6385f, -5.1443f, -5.7048f, -3.9458f}},
};

// Trees of three levels: the root's forward, that of its four children, and of their eight best.
class LongSpecInF32 : public LongSpec {};
TEST_P(LongSpecInF32, TreesAreTheReferences) {
  const std::vector<int32_t> all = ids_;
  for (const Reference& reference : kReferences) {
    ids_.assign(all.begin(), all.begin() + static_cast<int64_t>(reference.prompt));
    options_.window = reference.window;
    const auto draft_model = open("beams:4,8,8");
    draft_model->load(nullptr, nullptr);
    SessionOptions run = plain_run(8, {});
    const auto draft = draft_model->start({.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens});
    run.pass_rows = draft_model->tree().nodes;
    run.draft = draft.get();
    const auto session = model_->session(run);
    const int32_t root = *session->prefill(ids_, nullptr, nullptr);
    Tree tree;
    draft->propose(root, session->rows(), draft_model->tree(), &tree);
    EXPECT_EQ(tree.tokens, reference.tokens) << reference.prompt << ", window " << reference.window;
    EXPECT_EQ(tree.parents, reference.parents);
    ASSERT_EQ(tree.scores.size(), reference.scores.size());
    for (size_t i = 0; i < tree.scores.size(); ++i) EXPECT_NEAR(tree.scores[i], reference.scores[i], 1e-3) << i;
  }
}

TEST_P(LongSpec, TheTextIsThePlainOne) {
  constexpr int64_t kTokens = 32;
  ids_.resize(1000);  // decoding crosses a segment's end, and the window has moved
  // In f32, on the CPU, minutes of work: one temperature.
  const bool slow = std::get<1>(GetParam()) == DType::kF32 && std::get<0>(GetParam()) == DeviceChoice::kCpu;
  const SamplingSettings greedy{}, hot{.temperature = 1.2f, .top_p = 0.9f, .seed = 4};
  for (const SamplingSettings& sampling : slow ? std::vector{hot} : std::vector{greedy, hot}) {
    SessionOptions run = plain_run(kTokens, sampling);
    const std::vector<int32_t> plain = testing::decode_plainly(*model_->session(run), ids_, kTokens);
    for (const char* tree : {"chain:3", "eagle2:16,4,6", "opt:20,6,0.5"}) {
      int64_t accepted = 0;
      for (const KvMode kv : {KvMode::kDevice, KvMode::kHost}) {
        run.kv = kv;
        const auto draft_model = open(tree);
        const testing::Speculated said = testing::speculate(*model_, *draft_model, run, ids_, kTokens);
        EXPECT_EQ(said.tokens, plain) << tree << ", temperature " << sampling.temperature;
        if (kv == KvMode::kDevice) accepted = said.accepted;
        EXPECT_EQ(said.accepted, accepted) << "the draft sees the same rows wherever they lie";
      }
    }
  }
}

// Its top-1 agreement is 0.4 to 0.5: a layer that saw the wrong rows would fall far below.
TEST_P(LongSpec, EnoughIsAccepted) {
  const auto draft_model = open("chain:3");
  const testing::Speculated said = testing::speculate(*model_, *draft_model, plain_run(120, {}), ids_, 120);
  EXPECT_GT(said.tau(), 0.6) << said.steps << " steps";
}

INSTANTIATE_TEST_SUITE_P(Types, LongSpec, testing::devices_and_types(), testing::name_of_device_and_type);
INSTANTIATE_TEST_SUITE_P(Types, LongSpecInF32,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values(DType::kF32)),
                         testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
