// Shapes by name, and models of made-up weights.
#include "runtime/model/files/shapes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "runtime/model/config_check.h"
#include "runtime/model/random_checkpoint.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

// What the models' authors count: a wrong size anywhere changes it.
TEST(Shapes, HaveAsManyParametersAsTheirModels) {
  const std::map<std::string, int64_t> published = {
      {"smollm2-135m", 134515008},  {"smollm2-360m", 361821120},    {"smollm2-1.7b", 1711376384},
      {"llama-2-7b", 6738415616},   {"llama-3.2-1b", 1235814400},   {"llama-3.2-3b", 3212749824},
      {"llama-3.1-8b", 8030261248}, {"llama-3.1-70b", 70553706496}, {"mistral-7b-v0.3", 7248023552},
      {"qwen2.5-0.5b", 494032768},  {"qwen2.5-1.5b", 1543714304},   {"qwen2.5-3b", 3085938688},
      {"qwen2.5-7b", 7615616512},   {"qwen2.5-14b", 14770033664},   {"qwen3-0.6b", 596049920},
      {"qwen3-1.7b", 1720574976},   {"qwen3-4b", 4022468096},       {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200}};
  std::set<std::string> names;
  for (const Shape& shape : known_shapes()) {
    const auto count = published.find(shape.name);
    ASSERT_NE(count, published.end()) << shape.name;
    EXPECT_EQ(parameter_count(shape.config), count->second) << shape.name;
    EXPECT_EQ(parameter_count(find_shape(shape.name).config), count->second) << shape.name;
    EXPECT_NO_THROW(make_rope_table(shape.config.rope, shape.config.head_dim, shape.config.max_positions));
    EXPECT_TRUE(names.insert(shape.name).second) << shape.name;
  }
  EXPECT_EQ(names.size(), published.size());
}

TEST(Shapes, AnUnknownNameListsThem) {
  try {
    find_shape("llama-9");
    ADD_FAILURE() << "found";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    for (const char* part : {"--shape", "'llama-9'", "llama-3.1-8b", "qwen3-8b", "config.json"}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

TEST(Shapes, MayBeAConfigFile) {
  const Shape shape = find_shape(HEADRACE_TEST_DATA "/tiny/qwen3/config.json");
  EXPECT_EQ(shape.config.family, "qwen3");
  EXPECT_EQ(shape.config.layers, 4);
  TemporaryFolder folder;
  const std::string broken = folder.write("config.json", "{\"model_type\": \"llama\"");
  for (const std::string& name : {broken, folder / "gone.json"}) {
    try {
      find_shape(name);
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

class RandomWeights : public ::testing::Test {
 protected:
  std::vector<float> read(const Checkpoint& model, const std::string& name, int64_t begin, int64_t end,
                          DType type = DType::kF32) {
    const TensorInfo& tensor = *model.find(name);
    const auto count = static_cast<size_t>((end - begin) * tensor.cols());
    std::vector<float> values(count);
    std::vector<uint16_t> halves(count);
    model.read_rows(tensor, begin, end, type, type == DType::kF32 ? static_cast<void*>(values.data()) : halves.data());
    for (size_t i = 0; i < count && type != DType::kF32; ++i) {
      values[i] = type == DType::kBF16 ? bf16_to_f32({halves[i]}) : f16_to_f32({halves[i]});
    }
    return values;
  }

  const ModelConfig config_ = find_shape(HEADRACE_TEST_DATA "/tiny/qwen25/config.json").config;
  const std::unique_ptr<Checkpoint> model_ = make_random_checkpoint("tiny", config_, 7);
  const std::string down_ = "model.layers.1.mlp.down_proj.weight";
};

TEST_F(RandomWeights, AreNormal) {
  for (const TensorInfo& tensor : model_->tensors()) {
    const std::vector<float> values = read(*model_, tensor.name, 0, tensor.rows());
    if (tensor.name.ends_with("norm.weight")) {
      for (const float value : values) ASSERT_EQ(value, 1.0f) << tensor.name;
      continue;
    }
    double sum = 0, squares = 0;
    for (const float value : values) sum += value, squares += static_cast<double>(value) * value;
    const auto count = static_cast<double>(values.size()), cols = static_cast<double>(tensor.cols());
    EXPECT_LT(std::abs(sum / count), 5 / std::sqrt(count * cols)) << tensor.name;
    EXPECT_NEAR(squares / count * cols, 1.0, 8 / std::sqrt(count)) << tensor.name;
  }
}

// By seed, tensor and place alone: not by how many rows are read at once, nor in which type.
TEST_F(RandomWeights, AreAFunctionOfTheirPlace) {
  const TensorInfo& tensor = *model_->find(down_);
  const std::vector<float> all = read(*model_, down_, 0, tensor.rows());
  std::vector<float> pieces;
  for (int64_t row = 0, step = 1; row < tensor.rows(); row += step, step = step % 3 + 1) {
    const std::vector<float> piece = read(*model_, down_, row, std::min(row + step, tensor.rows()));
    pieces.insert(pieces.end(), piece.begin(), piece.end());
  }
  EXPECT_EQ(pieces, all);
  for (const DType type : {DType::kBF16, DType::kF16}) {
    const std::vector<float> rounded = read(*model_, down_, 0, tensor.rows(), type);
    for (size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(rounded[i], type == DType::kBF16 ? bf16_to_f32(f32_to_bf16(all[i])) : f16_to_f32(f32_to_f16(all[i])));
    }
  }
  EXPECT_EQ(read(*make_random_checkpoint("again", config_, 7), down_, 0, tensor.rows()), all);
  EXPECT_NE(read(*make_random_checkpoint("other", config_, 8), down_, 0, tensor.rows()), all);
  EXPECT_NE(read(*model_, "model.layers.2.mlp.down_proj.weight", 0, tensor.rows()), all);
}

TEST_F(RandomWeights, HaveNoTokenizer) { EXPECT_THROW(model_->load_tokenizer(), Error); }

}  // namespace
}  // namespace headrace
