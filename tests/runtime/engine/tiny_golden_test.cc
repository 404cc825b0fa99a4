// Tiny random models of every family against transformers in f32: logits at every position, greedy tokens.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::Golden;
using testing::LoadedModel;

constexpr float kTolerance = 1e-3f;

class TinyGolden : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  const std::string path = testing::tiny_model(std::get<1>(GetParam()));
  const Golden golden = testing::read_golden(path + "/golden.safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const std::vector<float>& expected = golden.floats.at("logits");
  const LoadedModel model{path, DType::kF32, std::get<0>(GetParam())};
  const size_t vocab = static_cast<size_t>(model.checkpoint->config().vocab);
};

TEST_P(TinyGolden, PrefillLogits) {
  for (const size_t length : {1, 2, 15, 16, 63, 64, 65, 127, 128, 129, 199, 200}) {
    auto session = model.session(model.options(static_cast<int64_t>(length), 1));
    session->prefill({ids.data(), length}, nullptr, nullptr);
    const std::vector<float> logits = session->logits(1);
    EXPECT_LT(testing::largest_difference(logits.data(), expected.data() + (length - 1) * vocab, vocab), kTolerance)
        << length;
  }
}

// The log-probability of each next token, from the reference's logits. 193 rows: three groups of 64 and one row.
TEST_P(TinyGolden, PromptScores) {
  constexpr size_t kRows = 193;
  PromptScores scores{.next = {ids.begin() + 1, ids.begin() + 1 + kRows}, .log_probs = {}};
  SessionOptions options = model.options(kRows, 1);
  options.scores = &scores;
  model.session(options)->prefill({ids.data(), kRows}, nullptr, nullptr);
  ASSERT_EQ(scores.log_probs.size(), kRows);
  for (size_t row = 0; row < kRows; ++row) {
    const float* const logits = expected.data() + row * vocab;
    double sum = 0;
    for (size_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(logits[i]));
    const double log_prob = static_cast<double>(logits[ids[row + 1]]) - std::log(sum);
    EXPECT_NEAR(static_cast<double>(scores.log_probs[row]), log_prob, kTolerance) << row;
  }
}

// The decode path over all the other positions: a chain of 100 rows in one pass, twice.
TEST_P(TinyGolden, ChainLogits) {
  SessionOptions options = model.options(1, 200);
  options.pass_rows = options.drawn_rows = 100;
  auto session = model.session(options);
  session->prefill({ids.data(), 1}, nullptr, nullptr);
  for (size_t first = 1; first < ids.size(); first += 100) {
    const size_t rows = std::min<size_t>(100, ids.size() - first);
    Tree tree;
    tree.reset(ids[first]);
    Acceptance all{.nodes = {0}, .next = 0};
    for (size_t i = 1; i < rows; ++i) all.nodes.push_back(tree.add(ids[first + i], static_cast<int32_t>(i - 1)));
    session->verify(tree);
    const std::vector<float> logits = session->logits(static_cast<int64_t>(rows));
    session->commit(all);
    EXPECT_LT(testing::largest_difference(logits.data(), expected.data() + first * vocab, rows * vocab), kTolerance);
  }
}

TEST_P(TinyGolden, GreedyTokens) {
  auto session = model.session(model.options(static_cast<int64_t>(ids.size()), 128));
  EXPECT_EQ(testing::decode_plainly(*session, ids, 128), golden.ids("greedy"));
}

INSTANTIATE_TEST_SUITE_P(Families, TinyGolden,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("llama2", "llama31", "llama-linear", "llama-yarn",
                                                              "mistral", "ministral3", "mistral3", "phi3", "qwen25",
                                                              "qwen3", "seed-oss")),
                         [](const auto& given) {
                           std::string id = std::get<1>(given.param);
                           std::erase(id, '-');
                           return testing::device_name(std::get<0>(given.param)) + "_" + id;
                         });

}  // namespace
}  // namespace headrace
