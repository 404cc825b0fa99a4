// Tiny random models with experts, Qwen3-MoE and gpt-oss, each a directory and a GGUF file with the same values,
// against transformers in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::Golden;
using testing::LoadedModel;

constexpr float kExpertsTolerance = 5e-4f;  // f32 against f64 in transformers: 3e-5
constexpr float kInt8Median = 0.6f;         // of logits with a spread of 3.1, in 64 columns: 0.4

std::string directory_of(const std::string& model) { return model.substr(0, model.find(".gguf")); }

class ExpertsGolden : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  const Golden golden =
      testing::read_golden(testing::tiny_model(directory_of(std::get<1>(GetParam()))) + "/golden.safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const std::vector<int64_t>& positions = golden.ints.at("logit_positions");
  const std::vector<float>& expected = golden.floats.at("logits");
  const LoadedModel model{testing::tiny_model(std::get<1>(GetParam())), DType::kF32, std::get<0>(GetParam())};
  const size_t vocab = static_cast<size_t>(model.checkpoint->config().vocab);

  float difference(const float* logits, size_t index) const {
    return testing::largest_difference(logits, expected.data() + index * vocab, vocab);
  }
};

TEST_P(ExpertsGolden, PrefillLogits) {
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t length = static_cast<size_t>(positions[i]) + 1;
    auto session = model.session(model.options(static_cast<int64_t>(length), 1));
    session->prefill({ids.data(), length}, nullptr, nullptr);
    EXPECT_LT(difference(session->logits(1).data(), i), kExpertsTolerance) << length;
  }
}

// 8 bits are near the logits; a lean prefill converts matrices in another order, and has the same bits.
TEST_P(ExpertsGolden, PrefillIn8Bits) {
  std::vector<float> differences;
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t length = static_cast<size_t>(positions[i]) + 1;
    std::vector<float> usual;
    for (const bool lean : {false, true}) {
      SessionOptions options = model.options(static_cast<int64_t>(length), 1);
      options.prefill_int8 = true;
      options.lean_prefill = lean;
      auto session = model.session(options);
      session->prefill({ids.data(), length}, nullptr, nullptr);
      const std::vector<float> logits = session->logits(1);
      if (lean) {
        EXPECT_EQ(logits, usual) << length;
        differences.push_back(difference(logits.data(), i));
      }
      usual = logits;
    }
  }
  std::sort(differences.begin(), differences.end());
  const float median = differences[differences.size() / 2];
  EXPECT_LT(median, kInt8Median);
  EXPECT_GT(median, kExpertsTolerance);  // it did compute in 8 bits
}

// The decode path over all the other positions: chains of 50 rows.
TEST_P(ExpertsGolden, ChainLogits) {
  constexpr size_t kRows = 50;
  SessionOptions options = model.options(1, 300);
  options.pass_rows = options.drawn_rows = kRows;
  auto session = model.session(options);
  session->prefill({ids.data(), 1}, nullptr, nullptr);
  size_t compared = 0;
  for (size_t first = 1; first < ids.size(); first += kRows) {
    const size_t rows = std::min(kRows, ids.size() - first);
    Tree tree;
    tree.reset(ids[first]);
    Acceptance all{.nodes = {0}, .next = 0};
    for (size_t i = 1; i < rows; ++i) all.nodes.push_back(tree.add(ids[first + i], static_cast<int32_t>(i - 1)));
    session->verify(tree);
    const std::vector<float> logits = session->logits(static_cast<int64_t>(rows));
    session->commit(all);
    for (size_t i = 0; i < positions.size(); ++i) {
      const size_t position = static_cast<size_t>(positions[i]);
      if (position < first || position >= first + rows) continue;
      EXPECT_LT(difference(logits.data() + (position - first) * vocab, i), kExpertsTolerance) << position;
      ++compared;
    }
  }
  EXPECT_GE(compared, positions.size() - 1);
}

TEST_P(ExpertsGolden, GreedyTokens) {
  const std::vector<int32_t> greedy = golden.ids("greedy");
  const auto count = static_cast<int64_t>(greedy.size());
  auto session = model.session(model.options(static_cast<int64_t>(ids.size()), count));
  EXPECT_EQ(testing::decode_plainly(*session, ids, count), greedy);
}

INSTANTIATE_TEST_SUITE_P(Files, ExpertsGolden,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("qwen3moe", "qwen3moe.gguf", "gptoss", "gptoss.gguf",
                                                              "gptoss-mxfp4", "gptoss-mxfp4.gguf")),
                         [](const auto& given) {
                           const std::string model = std::get<1>(given.param);
                           std::string name = directory_of(model);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return testing::device_name(std::get<0>(given.param)) + "_" + name +
                                  (model.ends_with("gguf") ? "_gguf" : "_directory");
                         });

}  // namespace
}  // namespace headrace
