// SmolLM2-135M-Instruct as GGUF (HEADRACE_TEST_GGUF): every weight equals that of the Hugging Face directory which the
// reference makes of the same file. The sums are of that directory in f32 (gguf 0.19's dequantize, Q and K rows in
// Hugging Face's order): of each weight's bits times its index plus one, modulo 2^64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "runtime/model/files/open_checkpoint.h"

namespace headrace {
namespace {

uint64_t sum_of(const Checkpoint& checkpoint, const TensorInfo& info) {
  std::vector<uint32_t> bits(static_cast<size_t>(info.rows() * info.cols()));
  checkpoint.read_rows(info, 0, info.rows(), DType::kF32, bits.data());
  uint64_t sum = 0;
  for (size_t i = 0; i < bits.size(); ++i) sum += uint64_t{bits[i]} * (i + 1);
  return sum;
}

TEST(RealModel, WeightsEqualTheReference) {
  const char* const path = std::getenv("HEADRACE_TEST_GGUF");
  ASSERT_NE(path, nullptr) << "HEADRACE_TEST_GGUF names no file: run tests/run.sh, which fetches the model";
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(checkpoint->format(), "GGUF v3");
  EXPECT_EQ(config.layer_count(), 30);
  EXPECT_EQ(config.layers.front().attention().heads, 9);
  EXPECT_EQ(config.layers.front().attention().kv_heads, 3);
  EXPECT_EQ(config.layers.front().attention().head_dim, 64);
  EXPECT_EQ(config.vocab, 49152);
  EXPECT_EQ(config.max_positions, 8192);
  EXPECT_EQ(config.rope.theta, 100000.0);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.end_ids, std::vector<int32_t>{2});
  EXPECT_EQ(checkpoint->natural_dtype(), DType::kBF16);
  EXPECT_NE(checkpoint->chat_template().find("<|im_start|>"), std::string::npos);

  const std::pair<const char*, uint64_t> kSums[] = {
      {"model.embed_tokens.weight", 0x779fe7cb39c5bf80},
      {"model.layers.0.self_attn.q_proj.weight", 0x498bfdc8aef21a00},
      {"model.layers.0.self_attn.k_proj.weight", 0xb2e0dec402217000},
      {"model.layers.17.self_attn.v_proj.weight", 0xb3218d5903e3fc00},
      {"model.layers.29.mlp.down_proj.weight", 0xbbdb33a363dc2000},
      {"model.norm.weight", 0xa28ba9da0000},
  };
  for (const auto& [name, sum] : kSums) {
    const TensorInfo* info = checkpoint->find(name);
    ASSERT_NE(info, nullptr) << name;
    EXPECT_EQ(sum_of(*checkpoint, *info), sum) << name;
  }
  std::vector<TensorInfo> by_name = checkpoint->tensors();
  std::sort(by_name.begin(), by_name.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  ASSERT_EQ(by_name.size(), 272u);
  uint64_t all = 0;
  for (const TensorInfo& info : by_name) all = all * 1000003 + sum_of(*checkpoint, info);
  EXPECT_EQ(all, 0xb1e3fcc323a7f880);
}

}  // namespace
}  // namespace headrace
