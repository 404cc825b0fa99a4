// Tiny random models whose layers are of two kinds, against transformers in f32: of Qwen3.5, with a recurrent state or
// rows, and of Gemma 3, with rows or a window of them. Of their logits the golden has every tenth position; as a GGUF
// file each is compared as well.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::Golden;
using testing::LoadedModel;

// f32 against f64 in transformers: 4e-4 (qwen35), 8e-5 (gemma3), 6e-5 (gemma4), 7e-4 (gemma3deep, of 62 layers),
// 9e-4 (gemma4e).
float tolerance_of(const std::string& name) {
  return name == "qwen35" ? 3e-3f : name == "gemma3" || name == "gemma4" || name == "gemma4moe" ? 1e-3f : 1e-2f;
}

class HybridGolden : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  const std::string file = std::get<1>(GetParam()), name = file.substr(0, file.find('.'));
  const float tolerance = tolerance_of(name);
  const Golden golden = testing::read_golden(testing::tiny_model(name) + "/golden.safetensors");
  const std::vector<int32_t> ids = golden.ids("input_ids");
  const std::vector<int64_t>& positions = golden.ints.at("logit_positions");
  const std::vector<float>& expected = golden.floats.at("logits");
  const LoadedModel model{testing::tiny_model(file), DType::kF32, std::get<0>(GetParam())};
  const size_t vocab = static_cast<size_t>(model.checkpoint->config().vocab);

  float difference(const float* logits, size_t index) const {
    return testing::largest_difference(logits, expected.data() + index * vocab, vocab);
  }
};

// Prompts of 1 to 300 tokens: with and without whole chunks of 64, and all kinds of remainders.
TEST_P(HybridGolden, PrefillLogits) {
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t length = static_cast<size_t>(positions[i]) + 1;
    auto session = model.session(model.options(static_cast<int64_t>(length), 1));
    session->prefill({ids.data(), length}, nullptr, nullptr);
    EXPECT_LT(difference(session->logits(1).data(), i), tolerance) << length;
  }
}

// The decode path over all the other positions: chains of 50 rows.
TEST_P(HybridGolden, ChainLogits) {
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
      EXPECT_LT(difference(logits.data() + (position - first) * vocab, i), tolerance) << position;
      ++compared;
    }
  }
  EXPECT_GE(compared, positions.size() - 1);
}

TEST_P(HybridGolden, GreedyTokens) {
  const std::vector<int32_t> greedy = golden.ids("greedy");
  const auto count = static_cast<int64_t>(greedy.size());
  auto session = model.session(model.options(static_cast<int64_t>(ids.size()), count));
  EXPECT_EQ(testing::decode_plainly(*session, ids, count), greedy);
}

INSTANTIATE_TEST_SUITE_P(Files, HybridGolden,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("qwen35", "qwen35.gguf", "gemma3", "gemma3.gguf",
                                                              "gemma3deep", "gemma3deep.gguf", "gemma4", "gemma4.gguf",
                                                              "gemma4moe", "gemma4moe.gguf", "gemma4e",
                                                              "gemma4e.gguf")),
                         [](const auto& given) {
                           const std::string file = std::get<1>(given.param);
                           const std::string name = file.substr(0, file.find('.'));
                           return str(testing::device_name(std::get<0>(given.param)), "_", name,
                                      file == name ? "_directory" : "_gguf");
                         });

}  // namespace
}  // namespace headrace
