// The MTP block of tiny random models (tests/data/tiny/qwen35 and, with experts, qwen35moe; directories and GGUF files)
// against an implementation in PyTorch: the logits of its head behind prompts of any length and behind decoded tokens,
// and a chain that it drafts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tests/runtime/draft/mtp/forced_text.h"
#include "tests/support/golden.h"

namespace headrace {
namespace {

constexpr int64_t kIds = 320;
constexpr float kOfLogits = 3e-3f;  // of f32 sums in another order (the goldens' own README)

const DraftOptions kOneLevel = {.type = SpecType::kMtp, .tree = chain_shape(1)};

class TinyMtp : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  TinyMtp() : model_(testing::tiny_model(std::get<1>(GetParam())), DType::kF32, std::get<0>(GetParam())) {}

  // Of the golden logits of one place.
  std::vector<float> expected(size_t row) const {
    const float* const logits = golden_.floats.at("mtp_logits").data() + row * kIds;
    double sum = 0;
    for (int64_t i = 0; i < kIds; ++i) sum += std::exp(static_cast<double>(logits[i]));
    std::vector<float> log_probs(logits, logits + kIds);
    for (float& value : log_probs) value -= static_cast<float>(std::log(sum));
    return log_probs;
  }
  void expect_row(size_t row, const std::vector<float>& log_probs) const {
    EXPECT_LT(testing::largest_difference(log_probs.data(), expected(row).data(), kIds), kOfLogits)
        << "position " << places_[row];
  }

  const std::string file_ = std::get<1>(GetParam());
  const testing::LoadedModel model_;
  const testing::Golden golden_ =
      testing::read_golden(testing::tiny_model(file_.substr(0, file_.find('.'))) + "/golden.safetensors");
  const std::vector<int32_t> ids_ = golden_.ids("input_ids");
  const std::vector<int32_t> places_ = golden_.ids("mtp_positions");  // of the states; the next token is known, too
};

TEST_P(TinyMtp, BehindAPromptOfAnyLength) {
  for (size_t row = 0; row < places_.size(); ++row) {
    const int64_t prompt = places_[row] + 1;
    testing::ForcedText text(model_, kOneLevel, ids_, prompt, 2);
    expect_row(row, text.log_probs(ids_[static_cast<size_t>(prompt)], kIds));
  }
}

TEST_P(TinyMtp, BehindDecodedTokens) {
  constexpr int64_t kPrompt = 70;
  testing::ForcedText text(model_, kOneLevel, ids_, kPrompt, 240);
  int64_t compared = 0;
  for (int32_t place = kPrompt - 1; place <= places_.back(); ++place) {
    const int32_t next = ids_[static_cast<size_t>(place) + 1];
    const auto row = std::find(places_.begin(), places_.end(), place);
    if (row == places_.end()) {
      text.guesses(next, 1);
    } else {
      expect_row(static_cast<size_t>(row - places_.begin()), text.log_probs(next, kIds));
      ++compared;
    }
    text.add(next);
  }
  EXPECT_GT(compared, 20);
}

TEST_P(TinyMtp, AChain) {
  const DraftOptions chain = {.type = SpecType::kMtp, .tree = chain_shape(3)};
  testing::ForcedText text(model_, chain, ids_, static_cast<int64_t>(ids_.size()), 8);
  EXPECT_EQ(text.sample(), golden_.ids("greedy")[0]);
  EXPECT_EQ(text.guesses(text.sample(), 3), golden_.ids("mtp_chain"));
}

INSTANTIATE_TEST_SUITE_P(Models, TinyMtp,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("qwen35", "qwen35.gguf", "qwen35moe", "qwen35moe.gguf")),
                         [](const auto& given) {
                           const std::string file = std::get<1>(given.param);
                           const std::string name = file.substr(0, file.find('.'));
                           return str(testing::device_name(std::get<0>(given.param)), "_", name,
                                      file == name ? "_directory" : "_gguf");
                         });

}  // namespace
}  // namespace headrace
