// The MTP block of a small trained hybrid model against an implementation in PyTorch, token for token.
// HEADRACE_TEST_HYBRID names its directory, with golden.safetensors in it.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/runtime/draft/mtp/forced_text.h"
#include "tests/support/golden.h"

namespace headrace {
namespace {

class TrainedMtp : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  void SetUp() override {
    if (directory_ == nullptr) GTEST_SKIP() << "HEADRACE_TEST_HYBRID names no model";
    model_ = std::make_unique<testing::LoadedModel>(directory_, DType::kF32, GetParam());
    golden_ = testing::read_golden(std::string(directory_) + "/golden.safetensors");
    ids_ = golden_.ids("input_ids");
  }

  const char* const directory_ = std::getenv("HEADRACE_TEST_HYBRID");
  std::unique_ptr<testing::LoadedModel> model_;
  testing::Golden golden_;
  std::vector<int32_t> ids_;
};

// The first choice behind each token of the prompt, of which the first half is prefilled.
TEST_P(TrainedMtp, RanksFirstWhatItShould) {
  constexpr size_t kPrompt = 1000;
  const std::vector<int32_t> first = golden_.ids("mtp_top1_prompt");
  const DraftOptions one_level = {.type = SpecType::kMtp, .tree = chain_shape(1)};
  testing::ForcedText text(*model_, one_level, ids_, kPrompt, static_cast<int64_t>(ids_.size() - kPrompt));
  for (size_t known = kPrompt; known < ids_.size(); ++known) {
    EXPECT_EQ(text.guesses(ids_[known], 1), std::vector(1, first[known - 1])) << "behind token " << known;
    text.add(ids_[known]);
  }
}

// Behind each token of the greedy text, a chain; and as much of it is right as there.
TEST_P(TrainedMtp, DraftsTheSameChains) {
  const std::vector<int32_t> greedy = golden_.ids("greedy"), drafts = golden_.ids("mtp_drafts");
  const DraftOptions chain = {.type = SpecType::kMtp, .tree = chain_shape(3)};
  testing::ForcedText text(*model_, chain, ids_, static_cast<int64_t>(ids_.size()), 100);
  for (size_t i = 0; i < greedy.size(); ++i) {
    ASSERT_EQ(text.sample(), greedy[i]) << i;
    EXPECT_EQ(text.guesses(greedy[i], 3), std::vector(drafts.begin() + 3 * i, drafts.begin() + 3 * (i + 1))) << i;
    text.add(greedy[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TrainedMtp, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
