// A tiny model in a GGUF file, with llama.cpp's names, keys and order of rows, is the model of its directory, whose
// logits the golden tests compare.
#include <gtest/gtest.h>

#include <map>

#include "runtime/model/decoder_tensors.h"
#include "runtime/model/files/open_checkpoint.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using testing_support::GgufWriter;

struct GgufCase {
  const char *directory, *arch;
};

std::string read_f32(const Checkpoint& model, const DecoderTensor& tensor) {
  const TensorInfo& info = model.require(tensor.name, tensor.shape);
  std::string bytes(static_cast<size_t>(info.rows() * info.cols()) * sizeof(float), '\0');
  model.read_rows(info, 0, info.rows(), DType::kF32, bytes.data());
  return bytes;
}

// "model.layers.1.self_attn.q_proj.weight" -> "blk.1.attn_q.weight"
std::string gguf_name(const std::string& name, const std::string& arch) {
  const std::map<std::string, std::string> kWhole = {{"model.embed_tokens.weight", "token_embd.weight"},
                                                     {"model.norm.weight", "output_norm.weight"},
                                                     {"lm_head.weight", "output.weight"}};
  const std::map<std::string, std::string> kParts = {
      {"input_layernorm", "attn_norm"},
      {"post_attention_layernorm", arch == "seed_oss" ? "post_attention_norm" : "ffn_norm"},
      {"self_attn.q_proj", arch == "phi3" ? "attn_qkv" : "attn_q"},
      {"self_attn.k_proj", arch == "phi3" ? "attn_qkv" : "attn_k"},
      {"self_attn.v_proj", arch == "phi3" ? "attn_qkv" : "attn_v"},
      {"self_attn.o_proj", "attn_output"},
      {"mlp.gate_proj", arch == "phi3" ? "ffn_up" : "ffn_gate"},
      {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  if (const auto whole = kWhole.find(name); whole != kWhole.end()) return whole->second;
  const size_t layer = std::string("model.layers.").size(), part = name.find('.', layer) + 1, last = name.rfind('.');
  return "blk." + name.substr(layer, part - layer) + kParts.at(name.substr(part, last - part)) + name.substr(last);
}

void add_config(const ModelConfig& c, const std::string& arch, GgufWriter* out) {
  out->add_string("general.architecture", arch);
  const auto number = [&](const std::string& key, int64_t value) {
    out->add_u32(arch + "." + key, static_cast<uint32_t>(value));
  };
  number("block_count", c.layer_count());
  number("context_length", c.max_positions);
  number("embedding_length", c.hidden);
  number("feed_forward_length", c.layers.front().ffn.width);
  number("attention.head_count", c.layers.front().attention().heads);
  number("attention.head_count_kv", c.layers.front().attention().kv_heads);
  number("attention.key_length", c.layers.front().attention().head_dim);
  number("attention.value_length", c.layers.front().attention().head_dim);
  number("attention.sliding_window", 0);
  number("rope.dimension_count", c.rope_dims());
  number("vocab_size", c.vocab);
  number("rope.scaling.original_context_length", c.rope.original_max_positions);
  out->add_f32(arch + ".attention.layer_norm_rms_epsilon", static_cast<float>(c.rms_eps));
  out->add_f32(arch + ".rope.freq_base", static_cast<float>(c.rope.theta));
  if (c.rope.scaling != RopeScaling::kYarn) return;
  out->add_string(arch + ".rope.scaling.type", "yarn");
  out->add_f32(arch + ".rope.scaling.factor", static_cast<float>(c.rope.factor));
  out->add_f32(arch + ".rope.scaling.yarn_beta_fast", static_cast<float>(c.rope.beta_fast));
  out->add_f32(arch + ".rope.scaling.yarn_beta_slow", static_cast<float>(c.rope.beta_slow));
  out->add_f32(arch + ".rope.scaling.yarn_log_multiplier", static_cast<float>(c.rope.mscale_all_dim));
  out->add_f32(arch + ".attention.temperature_scale", static_cast<float>(c.rope.query_beta));
}

// Rows of q and k as llama.cpp's mistral3 has them: a head's pairs (i, i + head_dim / 2) as neighbours.
std::string with_pairs(const std::string& rows, int64_t head_dim, size_t row_bytes) {
  std::string out;
  for (size_t head = 0; head < rows.size(); head += static_cast<size_t>(head_dim) * row_bytes) {
    for (size_t i = 0; i < static_cast<size_t>(head_dim); ++i)
      out += rows.substr(head + (i % 2 * static_cast<size_t>(head_dim) / 2 + i / 2) * row_bytes, row_bytes);
  }
  return out;
}

// Tensors of one name are one tensor, rows after rows.
void add_tensors(const Checkpoint& model, const std::string& arch, GgufWriter* out) {
  for (const DecoderTensor& tensor : decoder_tensors(model.config())) {
    const std::string name = gguf_name(tensor.name, arch);
    std::string bytes = read_f32(model, tensor);
    if (arch == "mistral3" && (name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight")))
      bytes = with_pairs(bytes, model.config().rope_dims(), static_cast<size_t>(tensor.shape[1]) * sizeof(float));
    if (!out->tensors().empty() && out->tensors().back().name == name) {
      out->tensors().back().bytes += bytes;
      out->tensors().back().dimensions[1] += tensor.shape[0];
    } else {
      out->add_tensor({name, {tensor.shape.rbegin(), tensor.shape.rend()}, 0, bytes, {}, {}});
    }
  }
}

class GgufOfADirectory : public testing::TestWithParam<GgufCase> {};

TEST_P(GgufOfADirectory, IsTheSameModel) {
  const std::string arch = GetParam().arch;
  const auto directory = open_checkpoint(std::string(HEADRACE_TEST_DATA "/tiny/") + GetParam().directory);
  const ModelConfig& expected = directory->config();
  GgufWriter writer;
  add_config(expected, arch, &writer);
  add_tensors(*directory, arch, &writer);
  const TemporaryFolder folder;
  const auto gguf = open_checkpoint(folder.write("m.gguf", writer.finish()));
  const ModelConfig& config = gguf->config();
  EXPECT_EQ(config.family, arch);
  EXPECT_TRUE(config.layers == expected.layers);
  for (const auto size : {&ModelConfig::hidden, &ModelConfig::vocab, &ModelConfig::max_positions})
    EXPECT_EQ(config.*size, expected.*size);
  EXPECT_EQ(config.tied_head, expected.tied_head);
  EXPECT_EQ(config.rms_eps, static_cast<double>(static_cast<float>(expected.rms_eps)));
  const RopeTable table = make_rope_table(config.rope, config.rope_dims(), config.max_positions),
                  expected_table = make_rope_table(expected.rope, expected.rope_dims(), expected.max_positions);
  EXPECT_EQ(table.inv_freq, expected_table.inv_freq);
  EXPECT_EQ(table.scale, expected_table.scale);
  EXPECT_EQ(config.rope.query_beta, static_cast<double>(static_cast<float>(expected.rope.query_beta)));
  EXPECT_EQ(config.rope.query_step, expected.rope.query_step);
  const std::vector<DecoderTensor> tensors = decoder_tensors(expected);
  EXPECT_EQ(gguf->tensors().size(), tensors.size());
  for (const DecoderTensor& tensor : tensors)
    EXPECT_EQ(read_f32(*gguf, tensor), read_f32(*directory, tensor)) << tensor.name;
}

INSTANTIATE_TEST_SUITE_P(Families, GgufOfADirectory,
                         testing::Values(GgufCase{"phi3", "phi3"}, GgufCase{"seed-oss", "seed_oss"},
                                         GgufCase{"ministral3", "mistral3"}),
                         [](const auto& test) { return std::string(test.param.arch); });

}  // namespace
}  // namespace headrace
