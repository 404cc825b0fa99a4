// headrace bench quality --draft-needle: a head that copies what followed a token earlier finds a number if its cache
// has the number's rows, and not otherwise; sums over needles, and the JSON.
#include "runtime/commands/quality/draft_needle.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runtime/commands/quality/needle.h"
#include "runtime/draft/cache.h"
#include "tests/cli/tiny_model.h"
#include "tests/support/draft_files.h"
#include "tests/support/golden.h"
#include "tests/support/session_fixture.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::DraftFiles;
using testing_support::FileTensor;

constexpr int64_t kHidden = 64, kFfn = 32, kBytes = 256, kHeadDim = 128;

struct Matrix {
  int64_t rows, cols;
  std::vector<float> values = std::vector<float>(static_cast<size_t>(rows * cols));
  float& at(int64_t row, int64_t col) { return values[static_cast<size_t>(row * cols + col)]; }
  FileTensor tensor() const {
    return {
        "F32", {rows, cols}, std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
  }
};

FileTensor ones(int64_t count) {
  FileTensor tensor = Matrix{1, count, std::vector<float>(static_cast<size_t>(count), 1)}.tensor();
  tensor.shape = {count};
  return tensor;
}

// Row i joins the state of token i, here its embedding, with the embedding of token i + 1, and predicts token i + 2. It
// looks for earlier rows whose first token is its second, by a head in whose last dimensions RoPE turns next to
// nothing, and takes what came after: their second token.
DraftFiles copying_head(const std::string& target) {
  const std::vector<float> embedding =
      testing::read_golden(target + "/model.safetensors").floats.at("model.embed_tokens.weight");
  DraftFiles files;
  files.config = {{"architectures", {"LlamaForCausalLMEagle3"}},
                  {"model_type", "llama"},
                  {"hidden_size", kHidden},
                  {"intermediate_size", kFfn},
                  {"num_hidden_layers", 1},
                  {"num_attention_heads", 1},
                  {"num_key_value_heads", 1},
                  {"rope_theta", 1e12},
                  {"max_position_embeddings", 1000000},
                  {"vocab_size", 512},
                  {"draft_vocab_size", kBytes},
                  {"eagle_aux_hidden_state_layer_ids", {0, 1, 2}}};
  Matrix fc{kHidden, 3 * kHidden}, q{kHeadDim, 2 * kHidden}, k = q, v = q, o{kHidden, kHeadDim}, head{kBytes, kHidden};
  for (int64_t i = 0; i < kHidden; ++i) {
    const int64_t still = i < kHidden / 2 ? kHidden / 2 + i : kHidden + i;  // the last half of the pairs (i, i + 64)
    fc.at(i, i) = 1;
    q.at(still, i) = k.at(still, kHidden + i) = 4;
    v.at(i, i) = o.at(i, i) = 1;
    for (int64_t token = 0; token < kBytes; ++token) {
      double square = 0;
      const float* const row = embedding.data() + token * kHidden;
      for (int64_t j = 0; j < kHidden; ++j) square += static_cast<double>(row[j]) * static_cast<double>(row[j]);
      head.at(token, i) = 3 * row[i] / static_cast<float>(std::sqrt(square));
    }
  }
  const std::string layer = "midlayer.", attention = layer + "self_attn.", mlp = layer + "mlp.";
  files.tensors = {{"fc.weight", fc.tensor()},
                   {"lm_head.weight", head.tensor()},
                   {"norm.weight", ones(kHidden)},
                   {layer + "hidden_norm.weight", ones(kHidden)},
                   {layer + "input_layernorm.weight", ones(kHidden)},
                   {layer + "post_attention_layernorm.weight", ones(kHidden)},
                   {attention + "q_proj.weight", q.tensor()},
                   {attention + "k_proj.weight", k.tensor()},
                   {attention + "v_proj.weight", v.tensor()},
                   {attention + "o_proj.weight", o.tensor()},
                   {mlp + "gate_proj.weight", Matrix{kFfn, kHidden}.tensor()},
                   {mlp + "up_proj.weight", Matrix{kFfn, kHidden}.tensor()},
                   {mlp + "down_proj.weight", Matrix{kHidden, kFfn}.tensor()}};
  FileTensor offsets{"I64", {kBytes}, std::string(kBytes * sizeof(int64_t), '\0')};
  FileTensor marks{"BOOL", {512}, std::string(kBytes, '\1') + std::string(512 - kBytes, '\0')};
  files.tensors["d2t"] = offsets;
  files.tensors["t2d"] = marks;
  return files;
}

class DraftNeedle : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  void SetUp() override {
    write_tiny_model(folder_ / "model");
    std::filesystem::create_directories(folder_ / "head");
    copying_head(folder_ / "model").write(folder_ / "head");
    std::ofstream out(folder_ / "a.txt");
    for (int i = 0; i < 60; ++i) out << "Nobody says for the umpteenth time that nothing happened.\n";
  }

  DraftNeedleReport run(int64_t window) const {
    QualityOptions options;
    options.engine.model = folder_ / "model";
    options.engine.device = {.choice = GetParam(), .threads = 2};
    options.engine.dtype = DType::kF32;
    options.engine.draft = {.type = SpecType::kEagle3, .model = folder_ / "head", .window = window};
    options.documents = {folder_ / "a.txt"};
    options.prompt_tokens = 2000;
    options.seed = seed_;
    return run_draft_needle(options, {});
  }

  const TemporaryFolder folder_;
  uint64_t seed_ = 0;
};

// Digits of the number that stand there once, the last left out: what follows each is certain.
int64_t certain(const std::string& number) {
  return std::count_if(number.begin(), number.end() - 1,
                       [&](char digit) { return std::count(number.begin(), number.end(), digit) == 1; });
}

TEST_P(DraftNeedle, IsFoundIfTheCacheHoldsIt) {
  const auto clear = [&](size_t index) { return certain(needle_number(seed_, index)) >= 5; };
  while (!clear(0) || !clear(1) || !clear(2)) ++seed_;
  const DraftNeedleReport all = run(0), recent = run(kMinDraftWindow);
  EXPECT_EQ(all.window.rows, 0);
  EXPECT_EQ(recent.window.rows, kMinDraftWindow);
  ASSERT_EQ(all.rows.size(), 3u);
  ASSERT_EQ(recent.rows.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const DraftNeedleRow &seen = all.rows[i], &unseen = recent.rows[i];
    SCOPED_TRACE(seen.number);
    EXPECT_EQ(seen.number, unseen.number);
    EXPECT_EQ(seen.tokens, 7);  // of a byte each
    EXPECT_EQ(unseen.tokens, 7);
    EXPECT_EQ(seen.absent, 0);
    EXPECT_LE(seen.prompt_tokens, 2000 + kNeedleSlack);
    EXPECT_GE(seen.first, certain(seen.number));
    EXPECT_EQ(unseen.target_first, seen.target_first);  // the target has the full KV
    if (i == 2) {                                       // among the last tokens
      EXPECT_GE(unseen.first, certain(seen.number));
      continue;
    }
    EXPECT_LE(unseen.first, 2);
    EXPECT_GT(unseen.nats_sum, seen.nats_sum + 25);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, DraftNeedle, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

TEST(DraftNeedleReport, SumsUpNeedlesAndLeavesOutWhatTheVocabularyLacks) {
  DraftNeedleReport report;
  report.draft = "draft-eagle3";
  report.window.rows = 512;
  DraftNeedleRow row{.document = "a", .depth = 0.5, .number = "123"};
  row.tokens = 3, row.first = 2, row.target_first = 3, row.absent = 1, row.nats_sum = 2 * std::log(4.0);
  report.rows = {row, row};
  report.rows[1].absent = 3;
  report.rows[1].nats_sum = 0;
  EXPECT_NEAR(row.perplexity(), 4, 1e-9);
  EXPECT_NEAR(report.all().perplexity(), 4, 1e-9);
  EXPECT_EQ(report.all().first, 4);
  const auto json = nlohmann::json::parse(draft_needle_json(report));
  EXPECT_EQ(json["measures"], "draft needle");
  EXPECT_EQ(json["draft_window"], 512);
  EXPECT_FALSE(json.contains("draft_cache"));
  EXPECT_EQ(json["rows"][0]["perplexity"], 4.0);
  EXPECT_TRUE(json["rows"][1]["perplexity"].is_null());
  EXPECT_EQ(json["rows"][1]["number"], "123");
  EXPECT_EQ(json["all_documents"]["absent"], 4);
  EXPECT_FALSE(json["all_documents"].contains("depth"));
  report.window.retrieval = {.chunks = 47, .rows = 32, .every = 4};
  EXPECT_EQ(nlohmann::json::parse(draft_needle_json(report))["draft_cache"]["chunks"], 47);
}

}  // namespace
}  // namespace headrace
