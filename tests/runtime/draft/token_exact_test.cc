// Speculative text equals plain text, token for token, whatever the tree, the KV mode and the temperature
// (docs/design.md, section 6). SmolLM2-64K with its EAGLE-3 head on the start of a chapter; HEADRACE_TEST_SMOLLM2_64K
// names the target.
#include <gtest/gtest.h>

#include <cstdlib>

#include "runtime/draft/cache.h"
#include "runtime/draft/open/open_draft.h"
#include "tests/support/golden.h"
#include "tests/support/speculation.h"

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

class TokenExact : public ::testing::TestWithParam<testing::DeviceAndType> {
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

  std::vector<int32_t> speculate(const DraftOptions& draft, const Case& c, int64_t* accepted) {
    DraftOptions options = draft;
    options.tree = parse_tree(c.tree);
    const auto draft_model = open_draft(options, *model_->device, model_->checkpoint->config(), model_->weights);
    SessionOptions run = model_->options(kPrompt, kTokens);
    run.kv = c.kv;
    run.sampling = c.sampling;
    const testing::Speculated said = testing::speculate(*model_, *draft_model, run, ids_, kTokens);
    *accepted += said.accepted;
    return said.tokens;
  }

  // Returns how many tokens were accepted of as many as `runs` runs.
  int64_t expect_exact(const DraftOptions& draft, const std::vector<std::pair<const char*, KvMode>>& cases,
                       int64_t* runs) {
    // In f32, on the CPU, minutes of work: one temperature.
    const bool slow = std::get<1>(GetParam()) == DType::kF32 && std::get<0>(GetParam()) == DeviceChoice::kCpu;
    int64_t accepted = 0;
    for (const SamplingSettings& sampling : slow ? std::vector{kWarm} : std::vector{kGreedy, kWarm, kHot}) {
      SessionOptions plain_run = model_->options(kPrompt, kTokens);
      plain_run.sampling = sampling;
      const std::vector<int32_t> plain = testing::decode_plainly(*model_->session(plain_run), ids_, kTokens);
      for (const auto& [tree, kv] : cases) {
        ++*runs;
        EXPECT_EQ(speculate(draft, {tree, kv, sampling}, &accepted), plain)
            << tree << ", temperature " << sampling.temperature;
      }
    }
    return accepted;
  }

  std::optional<LoadedModel> model_;
  std::vector<int32_t> ids_;
};

TEST_P(TokenExact, EveryTreeModeAndTemperature) {
  int64_t runs = 0;
  const int64_t accepted = expect_exact({.type = SpecType::kEagle3, .model = HEADRACE_TEST_DATA "/eagle3", .tree = {}},
                                        {{"chain:3", KvMode::kDevice},
                                         {"eagle2:16,4,6", KvMode::kHost},
                                         {"beams:4,8,8", KvMode::kDevice},
                                         {"opt:20,6,0.5", KvMode::kHost}},
                                        &runs);
  EXPECT_GT(accepted, runs * kTokens / 4);  // a draft that is never right would prove little
}

TEST_P(TokenExact, ASmallModelThatSeesAWindow) {
  const char* const models = std::getenv("HEADRACE_TEST_MODELS");
  if (models == nullptr) GTEST_SKIP() << "HEADRACE_TEST_MODELS names no directory";
  int64_t runs = 0;
  const int64_t accepted = expect_exact(
      {.type = SpecType::kSimple, .model = std::string(models) + "/small-lm", .window = kMinDraftWindow, .tree = {}},
      {{"chain:3", KvMode::kHost}, {"eagle2:16,4,6", KvMode::kDevice}}, &runs);
  EXPECT_GT(accepted, runs * kTokens / 8);
}

INSTANTIATE_TEST_SUITE_P(Types, TokenExact, testing::devices_and_types(), testing::name_of_device_and_type);

}  // namespace
}  // namespace headrace
