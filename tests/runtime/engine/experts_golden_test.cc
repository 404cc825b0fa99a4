// Tiny random models with experts, Qwen3-MoE, gpt-oss, and Qwen3.5-MoE, whose layers have a shared expert, too, each a
// directory and a GGUF file with the same values, against transformers in f32.
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "runtime/base/input_file.h"
#include "tests/support/draft_files.h"
#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing::Golden;
using testing::LoadedModel;

class ExpertsGolden : public ::testing::TestWithParam<std::tuple<DeviceChoice, const char*>> {
 protected:
  const std::string file = std::get<1>(GetParam()), name = file.substr(0, file.find('.'));
  const bool hybrid = name == "qwen35moe";
  const float tolerance = hybrid ? 2e-3f : 5e-4f;  // f32 against f64 in transformers: 2e-4, 3e-5
  // Of logits with a spread of 3: 0.4 in 64 columns; 0.9 in 48, with recurrent layers, and 1.2 of the dense qwen35.
  const float int8_median = hybrid ? 1.2f : 0.6f;
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

TEST_P(ExpertsGolden, PrefillLogits) {
  for (size_t i = 0; i < positions.size(); ++i) {
    const size_t length = static_cast<size_t>(positions[i]) + 1;
    auto session = model.session(model.options(static_cast<int64_t>(length), 1));
    session->prefill({ids.data(), length}, nullptr, nullptr);
    EXPECT_LT(difference(session->logits(1).data(), i), tolerance) << length;
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
  EXPECT_LT(median, int8_median);
  EXPECT_GT(median, tolerance);  // it did compute in 8 bits
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
      EXPECT_LT(difference(logits.data() + (position - first) * vocab, i), tolerance) << position;
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

// A shared expert that is wider than the others. What is added to it makes nothing: it is zeros.
class WiderSharedExpert : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static constexpr int64_t kMore = 24;
  static std::string folder_of_model() { return testing::tiny_model("qwen35moe"); }
  static std::string wider(const std::vector<float>& values, std::vector<int64_t>* shape, bool by_columns) {
    std::vector<float> out;
    const int64_t rows = (*shape)[0], cols = (*shape)[1], more_cols = by_columns ? kMore : 0;
    for (int64_t row = 0; row < rows; ++row) {
      out.insert(out.end(), values.begin() + row * cols, values.begin() + (row + 1) * cols);
      out.insert(out.end(), static_cast<size_t>(more_cols), 0.0f);
    }
    if (!by_columns) out.insert(out.end(), static_cast<size_t>(kMore * cols), 0.0f);
    (*shape)[by_columns ? 1 : 0] += kMore;
    return {reinterpret_cast<const char*>(out.data()), out.size() * sizeof(float)};
  }
  static void write(const TemporaryFolder& folder) {
    const Golden stored = testing::read_golden(folder_of_model() + "/model.safetensors");
    std::map<std::string, testing_support::FileTensor> tensors;
    for (const auto& [name, values] : stored.floats) {
      testing_support::FileTensor& tensor = tensors[name] = {"F32", stored.shapes.at(name), ""};
      if (name.find("shared_expert.") != std::string::npos) {
        tensor.bytes = wider(values, &tensor.shape, name.ends_with("down_proj.weight"));
      } else {
        tensor.bytes = {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
      }
    }
    folder.write("model.safetensors", testing_support::safetensors_bytes(tensors));
    nlohmann::json config = nlohmann::json::parse(read_small_file(folder_of_model() + "/config.json", 1 << 16));
    nlohmann::json& width = config["text_config"]["shared_expert_intermediate_size"];
    width = width.get<int64_t>() + kMore;
    folder.write("config.json", config.dump());
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, WiderSharedExpert, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST_P(WiderSharedExpert, HasTheSameLogits) {
  const TemporaryFolder folder;
  write(folder);
  const LoadedModel wide(folder.path(), DType::kF32, GetParam()), usual(folder_of_model(), DType::kF32, GetParam());
  ASSERT_EQ(wide.checkpoint->config().layers.front().ffn.width, 16 + kMore);
  for (const bool int8 : {false, true}) {
    for (const int64_t prompt : {1, 70, 600}) {  // more rows than go through experts at once
      std::vector<float> expected;
      for (const LoadedModel* const model : {&usual, &wide}) {
        SessionOptions options = model->options(prompt, 8);
        options.prefill_int8 = int8;
        auto session = model->session(options);
        std::vector<std::vector<float>> logits;
        testing::decode_plainly(*session, testing::made_up_ids(prompt, 320), 8, &logits);
        std::vector<float> all;
        for (const std::vector<float>& of_step : logits) all.insert(all.end(), of_step.begin(), of_step.end());
        if (expected.empty()) expected = all;
        ASSERT_EQ(all.size(), expected.size());
        EXPECT_LT(testing::largest_difference(all.data(), expected.data(), all.size()), 2e-3f)
            << prompt << (int8 ? " in 8 bits" : "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Files, ExpertsGolden,
                         ::testing::Combine(::testing::ValuesIn(testing::session_devices()),
                                            ::testing::Values("qwen3moe", "qwen3moe.gguf", "qwen35moe",
                                                              "qwen35moe.gguf", "gptoss", "gptoss.gguf", "gptoss-mxfp4",
                                                              "gptoss-mxfp4.gguf")),
                         [](const auto& given) {
                           const std::string file = std::get<1>(given.param);
                           std::string name = file.substr(0, file.find('.'));
                           const char* const form = file == name ? "_directory" : "_gguf";
                           std::replace(name.begin(), name.end(), '-', '_');
                           return str(testing::device_name(std::get<0>(given.param)), "_", name, form);
                         });

}  // namespace
}  // namespace headrace
