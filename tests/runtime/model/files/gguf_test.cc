// GGUF files as models: names, order of rows, metadata, types. The files are built here; the real one is in
// real_model_test.cc.
#include "runtime/model/gguf/gguf.h"

#include <gtest/gtest.h>

#include <thread>

#include "runtime/model/config_check.h"
#include "runtime/model/families/read_config.h"
#include "runtime/model/files/open_checkpoint.h"
#include "runtime/model/gguf/gguf_vocabulary.h"
#include "tests/runtime/model/files/model_files.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using namespace testing_support;

// The tensors of the decoder that are stored as one under this name.
std::vector<std::string> parts_of(const std::string& name) {
  const std::string attention = "model.layers.0.self_attn.", mlp = "model.layers.0.mlp.";
  if (name == attention + "qkv_proj.weight")
    return {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"};
  if (name == mlp + "gate_up_proj.weight") return {mlp + "gate_proj.weight", mlp + "up_proj.weight"};
  return {name};
}

std::vector<float> read_all(const Checkpoint& checkpoint, const std::string& name) {
  const TensorInfo* info = checkpoint.find(name);
  if (info == nullptr) return {};
  std::vector<float> out(static_cast<size_t>(info->rows() * info->cols()));
  checkpoint.read_rows(*info, 0, info->rows(), DType::kF32, out.data());
  return out;
}

// The decoder's name of a tensor in a file of this architecture.
std::string decoder_name_in(const std::string& arch, const std::string& name) {
  const std::string bytes = small_gguf(arch).finish();
  return decoder_name(name, gguf_form(parse_gguf(MemoryBytes(bytes, "m"))), kMaxLayers);
}

// The rows that Hugging Face's row `row` of a head of 16 comes from: pairs (2i, 2i + 1) against halves (i, i + 8).
size_t pair_row(size_t row) { return row / 16 * 16 + row % 8 * 2 + row % 16 / 8; }

class GgufFamily : public testing::TestWithParam<const char*> {};

TEST_P(GgufFamily, TensorsUnderTheirNamesInTheirOrder) {
  const std::string arch = GetParam();
  const TemporaryFolder folder;
  const std::string path = folder.write("m.gguf", small_gguf(arch).finish());
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(path);
  EXPECT_EQ(checkpoint->format(), "GGUF v3");
  EXPECT_EQ(checkpoint->path(), path);
  EXPECT_EQ(checkpoint->natural_dtype(), DType::kF32);
  EXPECT_EQ(checkpoint->chat_template(), "{{ messages }}");
  const ModelConfig& config = checkpoint->config();
  EXPECT_EQ(config.family, arch);
  EXPECT_EQ(config.vocab, 8);
  EXPECT_EQ(config.layers.front().attention().head_dim, 16);
  EXPECT_EQ(config.rope.theta, 20000.0);
  EXPECT_TRUE(config.tied_head);
  EXPECT_EQ(config.layers.front().attention().qkv_bias, arch == "qwen2" || arch == "seed_oss");
  EXPECT_EQ(config.layers.front().attention().qk_norm, arch == "qwen3");
  EXPECT_EQ(config.end_ids, (std::vector<int32_t>{6, 7}));
  for (const GgufWriter::Tensor& stored : small_gguf_tensors(arch)) {
    const std::string name = decoder_name_in(arch, stored.name);
    std::vector<float> values;
    for (const std::string& part : parts_of(name)) {
      const std::vector<float> rows = read_all(*checkpoint, part);
      values.insert(values.end(), rows.begin(), rows.end());
    }
    ASSERT_EQ(values.size() * 4, stored.bytes.size()) << name;
    const bool pairs = arch == "llama" || arch == "mistral3";
    const bool rotary = pairs && (name.find("q_proj") != name.npos || name.find("k_proj") != name.npos);
    const size_t cols = stored.dimensions.size() == 1 ? 1 : 32;
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t row = i / cols, from = (rotary ? pair_row(row) : row) * cols + i % cols;
      ASSERT_EQ(values[i], small_value(stored.name, from)) << name << " at " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamily, testing::Values("llama", "mistral3", "phi3", "qwen2", "qwen3", "seed_oss"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Gguf, LlamaBiasesAreReorderedToo) {
  const TemporaryFolder folder;
  GgufWriter writer = small_gguf("llama");
  for (const GgufWriter::Tensor& tensor : small_gguf_tensors("qwen2"))
    if (tensor.name.find("bias") != std::string::npos) writer.add_tensor(tensor);
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder.write("m.gguf", writer.finish()));
  EXPECT_TRUE(checkpoint->config().layers.front().attention().qkv_bias);
  const std::vector<float> q = read_all(*checkpoint, "model.layers.0.self_attn.q_proj.bias"),
                           v = read_all(*checkpoint, "model.layers.0.self_attn.v_proj.bias");
  ASSERT_EQ(q.size(), 32u);
  for (size_t i = 0; i < q.size(); ++i) EXPECT_EQ(q[i], small_value("blk.0.attn_q.bias", pair_row(i)));
  for (size_t i = 0; i < v.size(); ++i) EXPECT_EQ(v[i], small_value("blk.0.attn_v.bias", i));
}

// Rows of whole blocks: the parts are ranges of the stored bytes, and stay quantised.
TEST(Gguf, FusedMatricesStayQuantised) {
  constexpr size_t kRowBytes = 34;  // a block of Q8_0: a scale of f16 and 32 numbers
  const TemporaryFolder folder;
  GgufWriter writer = small_gguf("phi3");
  for (GgufWriter::Tensor& tensor : writer.tensors()) {
    if (tensor.name != "blk.0.attn_qkv.weight" && tensor.name != "blk.0.ffn_up.weight") continue;
    tensor.type = 8;
    tensor.bytes.clear();
    for (int row = 0; row < 64; ++row) {
      tensor.bytes += raw_bytes<uint16_t>(0x3800);  // 0.5
      for (int i = 0; i < 32; ++i) tensor.bytes += static_cast<char>(row * 3 + i);
    }
  }
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder.write("m.gguf", writer.finish()));
  for (const char* fused : {"model.layers.0.self_attn.qkv_proj.weight", "model.layers.0.mlp.gate_up_proj.weight"}) {
    EXPECT_EQ(checkpoint->find(fused), nullptr);
    std::string blocks, stored;
    std::vector<float> values;
    for (const std::string& part : parts_of(fused)) {
      const TensorInfo& info = *checkpoint->find(part);
      EXPECT_EQ(info.block_type(), WeightType::kQ8_0) << part;
      EXPECT_EQ(info.stored_bytes, static_cast<size_t>(info.rows()) * kRowBytes) << part;
      std::string bytes(info.stored_bytes, '\0');
      for (int64_t row = 0; row < info.rows(); row += 5)
        checkpoint->read_blocks(info, row, std::min<int64_t>(row + 5, info.rows()),
                                &bytes[static_cast<size_t>(row) * kRowBytes]);
      blocks += bytes;
      const ByteRange range = checkpoint->stored_range(info);
      stored += range.source->text(range.begin, range.bytes);
      const std::vector<float> rows = read_all(*checkpoint, part);
      values.insert(values.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(blocks, writer.tensors()[2].bytes) << fused;
    EXPECT_EQ(stored, blocks) << fused;
    ASSERT_EQ(values.size(), 64u * 32) << fused;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], 0.5f * static_cast<float>(static_cast<int8_t>(i / 32 * 3 + i % 32))) << fused << " at " << i;
  }
}

TEST(Gguf, RangesOfRowsReadByThreadsAgree) {
  const TemporaryFolder folder;
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder.write("m.gguf", small_gguf("llama").finish()));
  const TensorInfo& info = checkpoint->require("model.layers.0.self_attn.q_proj.weight", {32, 32});
  const std::vector<float> whole = read_all(*checkpoint, info.name);
  std::vector<float> parts(whole.size(), -1);
  std::vector<std::thread> threads;
  for (int64_t row = 0; row < 32; row += 5)  // ranges that end within a head
    threads.emplace_back([&, row] {
      checkpoint->read_rows(info, row, std::min<int64_t>(row + 5, 32), DType::kF32,
                            &parts[static_cast<size_t>(row * 32)]);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parts, whole);
  EXPECT_EQ(read_all(*checkpoint, info.name), whole);
}

TEST(Gguf, VersionTwoAndOtherAlignments) {
  const TemporaryFolder folder;
  GgufWriter writer = small_gguf("qwen2");
  writer.version = 2;
  writer.alignment = 128;
  writer.add_u32("general.alignment", 128);
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder.write("m.gguf", writer.finish()));
  EXPECT_EQ(checkpoint->format(), "GGUF v2");
  EXPECT_EQ(read_all(*checkpoint, "model.norm.weight")[3], small_value("output_norm.weight", 3));
}

TEST(Gguf, UntiedHeadAndRopeFactors) {
  const TemporaryFolder folder;
  GgufWriter writer = small_gguf("llama");
  writer.add_tensor({"output.weight", {32, 8}, 0, std::string(32 * 8 * 4, '\0'), {}, {}});
  std::string factors;
  for (int i = 0; i < 8; ++i) factors += raw_bytes(1.0f + static_cast<float>(i));
  writer.add_tensor({"rope_freqs.weight", {8}, 0, factors, {}, {}});
  const std::unique_ptr<Checkpoint> checkpoint = open_checkpoint(folder.write("m.gguf", writer.finish()));
  EXPECT_FALSE(checkpoint->config().tied_head);
  EXPECT_NE(checkpoint->find("lm_head.weight"), nullptr);
  EXPECT_EQ(checkpoint->find("rope_freqs.weight"), nullptr);
  EXPECT_EQ(checkpoint->config().rope.frequency_factors, (std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}));
}

TEST(Gguf, RopeScalingKeys) {
  GgufWriter linear = small_gguf("llama");
  linear.add_string("llama.rope.scaling.type", "linear");
  linear.add_f32("llama.rope.scaling.factor", 4);
  std::string bytes = linear.finish();
  ModelConfig config = gguf_config(parse_gguf(MemoryBytes(bytes, "m")), MemoryBytes(bytes, "m"));
  EXPECT_EQ(config.rope.scaling, RopeScaling::kLinear);
  EXPECT_EQ(config.rope.factor, 4);
  GgufWriter yarn = small_gguf("qwen2");
  yarn.add_string("qwen2.rope.scaling.type", "yarn");
  yarn.add_f32("qwen2.rope.scaling.factor", 4);
  yarn.add_u32("qwen2.rope.scaling.original_context_length", 64);
  bytes = yarn.finish();
  config = gguf_config(parse_gguf(MemoryBytes(bytes, "m")), MemoryBytes(bytes, "m"));
  EXPECT_EQ(config.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(config.rope.original_max_positions, 64);
  EXPECT_TRUE(config.rope.truncate);
  EXPECT_NEAR(make_rope_table(config.rope, 16, 256).scale, 1.138629436, 1e-6);  // 0.1 ln 4 + 1
}

TEST(Gguf, VocabularyComesAcross) {
  const std::string bytes = small_gguf("llama").finish();
  const Vocabulary vocabulary = gguf_vocabulary(parse_gguf(MemoryBytes(bytes, "m.gguf")));
  EXPECT_EQ(vocabulary.source, "m.gguf");
  EXPECT_EQ(vocabulary.model, "gpt2");
  EXPECT_EQ(vocabulary.pre, "gpt-2");
  EXPECT_EQ(vocabulary.tokens.size(), 8u);
  EXPECT_EQ(vocabulary.tokens[4], "abc");
  EXPECT_EQ(vocabulary.types[7], 3);
  EXPECT_EQ(vocabulary.merges, (std::vector<std::string>{"a b", "ab c"}));
  EXPECT_EQ(vocabulary.bos, 5);
  EXPECT_EQ(vocabulary.eos, 6);
  EXPECT_EQ(vocabulary.eot, 7);
  EXPECT_EQ(vocabulary.unk, -1);
  EXPECT_EQ(vocabulary.add_bos, true);
  EXPECT_FALSE(vocabulary.add_eos.has_value());
}

TEST(Gguf, NamesOfOthersStayAsTheyAre) {
  EXPECT_EQ(decoder_name_in("llama", "blk.12.ffn_down.weight"), "model.layers.12.mlp.down_proj.weight");
  EXPECT_EQ(decoder_name_in("llama", "blk.12.ffn_up.weight"), "model.layers.12.mlp.up_proj.weight");
  EXPECT_EQ(decoder_name_in("phi3", "blk.12.ffn_up.weight"), "model.layers.12.mlp.gate_up_proj.weight");
  for (const char* name :
       {"blk.", "blk.0", "blk.0.", "blk.0.attn_q", "blk.0.strange.weight", "v.blk.0.attn_q.weight", ""})
    EXPECT_EQ(decoder_name_in("llama", name), name);
}

}  // namespace
}  // namespace headrace
