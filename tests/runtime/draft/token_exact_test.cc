// Speculative text equals plain text, token for token, whatever the tree, the KV mode and the temperature (DESIGN
// section 6). SmolLM2-64K with its EAGLE-3 head on the start of a chapter; HEADRACE_TEST_SMOLLM2_64K names the target.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/draft/draft_model.h"
#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

struct Case {
  const char* tree;
  KvMode kv;
  SamplingSettings sampling;
};

const SamplingSettings kGreedy{};
const SamplingSettings kWarm{.temperature = 0.7f, .seed = 3};
const SamplingSettings kHot{.temperature = 1.2f, .top_p = 0.9f, .seed = 4};

class TokenExact : public ::testing::TestWithParam<std::tuple<DeviceChoice, DType>> {
 protected:
  static constexpr int64_t kTokens = 32;
  // From a length whose decoding crosses a segment's end.
  static constexpr size_t kPrompt = 500;

  void SetUp() override {
    const char* const directory = std::getenv("HEADRACE_TEST_SMOLLM2_64K");
    if (directory == nullptr) GTEST_SKIP() << "HEADRACE_TEST_SMOLLM2_64K names no model";
    model_.emplace(directory, std::get<1>(GetParam()), std::get<0>(GetParam()));
    ids_ = testing::read_golden(HEADRACE_TEST_DATA "/eagle3/golden/tree.safetensors").ids("input_ids");
    ids_.resize(kPrompt);
  }

  std::vector<int32_t> speculate(const Case& c, int64_t* accepted) {
    const DraftOptions options = {
        .type = SpecType::kEagle3, .model = HEADRACE_TEST_DATA "/eagle3", .tree = parse_tree(c.tree)};
    const auto draft_model = open_draft(options, *model_->device, model_->checkpoint->config(), model_->weights);
    draft_model->load(nullptr, nullptr);
    SessionOptions run = model_->options(kPrompt, kTokens + draft_model->tree().levels);
    run.kv = c.kv;
    run.sampling = c.sampling;
    const auto draft = draft_model->start(
        {.prompt_tokens = run.prompt_tokens, .context_tokens = run.context_tokens, .sampling = run.sampling});
    run.pass_rows = draft_model->tree().nodes;
    run.draft = draft.get();
    const auto session = model_->session(run);
    std::vector<int32_t> tokens = {*session->prefill(ids_, nullptr, nullptr)};
    Tree tree;
    Acceptance acceptance;
    while (tokens.size() < kTokens) {
      draft->propose(tokens.back(), session->rows(), {}, &tree);
      accept(tree, session->verify(tree), &acceptance);
      session->commit(acceptance);
      draft->observe(tree, acceptance);
      *accepted += static_cast<int64_t>(acceptance.nodes.size()) - 1;
      for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
        tokens.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
      }
      tokens.push_back(acceptance.next);
    }
    tokens.resize(kTokens);
    return tokens;
  }

  std::optional<LoadedModel> model_;
  std::vector<int32_t> ids_;
};

TEST_P(TokenExact, EveryTreeModeAndTemperature) {
  int64_t accepted = 0;
  // In f32, on the CPU, minutes of work: one temperature.
  const bool slow = std::get<1>(GetParam()) == DType::kF32 && std::get<0>(GetParam()) == DeviceChoice::kCpu;
  const std::vector<SamplingSettings> samplings = slow ? std::vector{kWarm} : std::vector{kGreedy, kWarm, kHot};
  int64_t runs = 0;
  for (const SamplingSettings& sampling : samplings) {
    SessionOptions plain_run = model_->options(kPrompt, kTokens);
    plain_run.sampling = sampling;
    const std::vector<int32_t> plain = testing::decode_plainly(*model_->session(plain_run), ids_, kTokens);
    const Case cases[] = {{"chain:3", KvMode::kDevice, sampling},
                          {"eagle2:16,4,6", KvMode::kHost, sampling},
                          {"beams:4,8,8", KvMode::kDevice, sampling},
                          {"opt:20,6,0.5", KvMode::kHost, sampling}};
    for (const Case& c : cases) {
      ++runs;
      EXPECT_EQ(speculate(c, &accepted), plain) << c.tree << ", temperature " << sampling.temperature;
    }
  }
  EXPECT_GT(accepted, runs * kTokens / 4);  // a draft that is never right would prove little
}

INSTANTIATE_TEST_SUITE_P(Types, TokenExact,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values(DType::kF32, DType::kBF16)),
                         [](const auto& given) {
                           return testing::device_name(std::get<0>(given.param)) + "_" +
                                  dtype_name(std::get<1>(given.param));
                         });

}  // namespace
}  // namespace headrace
