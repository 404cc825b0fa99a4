// Whole models open: the reference directories, shapes, values, what a config says.
#include "runtime/model/checkpoint.h"

#include <gtest/gtest.h>

#include "runtime/model/decoder_tensors.h"

namespace headrace {
namespace {

std::string tiny(const std::string& name) { return std::string(HEADRACE_TEST_DATA) + "/tiny/" + name; }

struct TinyCase {
  const char* name;
  const char* family;
  int64_t kv_heads, head_dim;
  RopeScaling scaling;
  double theta;
  bool tied, qkv_bias, qk_norm;
};

void PrintTo(const TinyCase& tiny_case, std::ostream* out) { *out << tiny_case.name; }

class TinyModel : public testing::TestWithParam<TinyCase> {};

TEST_P(TinyModel, OpensAndReads) {
  const TinyCase& expected = GetParam();
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(tiny(expected.name));
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.family, expected.family);
  EXPECT_EQ(config.layers, 4);
  EXPECT_EQ(config.hidden, 64);
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, expected.kv_heads);
  EXPECT_EQ(config.head_dim, expected.head_dim);
  EXPECT_EQ(config.ffn, 160);
  EXPECT_EQ(config.vocab, 512);
  EXPECT_EQ(config.max_positions, 2048);
  EXPECT_EQ(config.rope.scaling, expected.scaling);
  EXPECT_EQ(config.rope.theta, expected.theta);
  EXPECT_EQ(config.tied_head, expected.tied);
  EXPECT_EQ(config.qkv_bias, expected.qkv_bias);
  EXPECT_EQ(config.qk_norm, expected.qk_norm);
  EXPECT_FALSE(config.output_bias);
  EXPECT_EQ(config.end_ids, std::vector<int32_t>{2});
  EXPECT_EQ(checkpoint->natural_dtype(), DType::kF32);
  EXPECT_EQ(checkpoint->format(), "safetensors");
  // Nothing in the file that a decoder has no use for, and nothing amiss.
  EXPECT_EQ(checkpoint->tensors().size(), decoder_tensors(config).size());
  for (const DecoderTensor& tensor : decoder_tensors(config)) {
    const TensorInfo& info = checkpoint->require(tensor.name, tensor.shape);
    std::vector<float> values(static_cast<size_t>(info.rows() * info.cols()), -1e30f);
    checkpoint->read_rows(info, 0, info.rows(), DType::kF32, values.data());
    for (const float value : values) ASSERT_LT(std::abs(value), 10.0f) << tensor.name;
    checkpoint->release_pages(info);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, TinyModel,
    testing::Values(TinyCase{"llama2", "llama", 4, 16, RopeScaling::kNone, 10000, false, false, false},
                    TinyCase{"llama31", "llama", 2, 16, RopeScaling::kLlama3, 500000, false, false, false},
                    TinyCase{"llama-linear", "llama", 2, 16, RopeScaling::kLinear, 10000, false, false, false},
                    TinyCase{"llama-yarn", "llama", 2, 16, RopeScaling::kYarn, 10000, false, false, false},
                    TinyCase{"mistral", "mistral", 2, 16, RopeScaling::kNone, 1e6, false, false, false},
                    TinyCase{"qwen25", "qwen2", 2, 16, RopeScaling::kNone, 1e6, true, true, false},
                    TinyCase{"qwen3", "qwen3", 2, 32, RopeScaling::kNone, 1e6, false, false, true}),
    [](const auto& test) {
      std::string name = test.param.name;
      for (char& c : name)
        if (c == '-') c = '_';
      return name;
    });

}  // namespace
}  // namespace headrace
