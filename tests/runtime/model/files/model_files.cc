#include "tests/runtime/model/files/model_files.h"

#include <functional>

#include "cache/base.h"
#include "runtime/model/decoder_tensors.h"
#include "runtime/model/families/read_config.h"

namespace headrace::testing_support {
namespace {

GgufWriter::Tensor f32_entry(const std::string& name, std::vector<int64_t> dimensions) {
  GgufWriter::Tensor out{name, std::move(dimensions), 0, "", {}, {}};
  size_t elements = 1;
  for (const int64_t size : out.dimensions) elements *= static_cast<size_t>(size);
  for (size_t i = 0; i < elements; ++i) out.bytes += raw_bytes(small_value(name, i));
  return out;
}

}  // namespace

float small_value(const std::string& name, size_t index) {
  return static_cast<float>(std::hash<std::string>()(name) % 97) + static_cast<float>(index) / 4096;
}

std::vector<GgufWriter::Tensor> small_gguf_tensors(const std::string& arch) {
  std::vector<GgufWriter::Tensor> out;
  const auto add = [&](const std::string& name, std::vector<int64_t> dimensions) {
    out.push_back(f32_entry(name, std::move(dimensions)));
  };
  add("token_embd.weight", {32, 8});
  add("blk.0.attn_norm.weight", {32});
  if (arch == "phi3") {
    add("blk.0.attn_qkv.weight", {32, 64});
  } else {
    add("blk.0.attn_q.weight", {32, 32});
    add("blk.0.attn_k.weight", {32, 16});
    add("blk.0.attn_v.weight", {32, 16});
  }
  if (arch == "qwen2" || arch == "seed_oss") {
    add("blk.0.attn_q.bias", {32});
    add("blk.0.attn_k.bias", {16});
    add("blk.0.attn_v.bias", {16});
  }
  if (arch == "qwen3") {
    add("blk.0.attn_q_norm.weight", {16});
    add("blk.0.attn_k_norm.weight", {16});
  }
  add("blk.0.attn_output.weight", {32, 32});
  add(arch == "seed_oss" ? "blk.0.post_attention_norm.weight" : "blk.0.ffn_norm.weight", {32});
  if (arch != "phi3") add("blk.0.ffn_gate.weight", {32, 32});
  add("blk.0.ffn_up.weight", {32, arch == "phi3" ? 64 : 32});
  add("blk.0.ffn_down.weight", {32, 32});
  add("output_norm.weight", {32});
  return out;
}

GgufWriter small_gguf(const std::string& arch) {
  GgufWriter out;
  out.add_string("general.architecture", arch);
  out.add_u32(arch + ".block_count", 1);
  out.add_u32(arch + ".context_length", 256);
  out.add_u32(arch + ".embedding_length", 32);
  out.add_u32(arch + ".feed_forward_length", 32);
  out.add_u32(arch + ".attention.head_count", 2);
  out.add_u32(arch + ".attention.head_count_kv", 1);
  out.add_f32(arch + ".attention.layer_norm_rms_epsilon", 1e-5f);
  out.add_f32(arch + ".rope.freq_base", 20000.0f);
  out.add_string("tokenizer.ggml.model", "gpt2");
  out.add_string("tokenizer.ggml.pre", "gpt-2");
  out.add_strings("tokenizer.ggml.tokens", {"a", "b", "c", "ab", "abc", "<s>", "</s>", "<|eot|>"});
  out.add_i32s("tokenizer.ggml.token_type", {1, 1, 1, 1, 1, 3, 3, 3});
  out.add_strings("tokenizer.ggml.merges", {"a b", "ab c"});
  out.add_u32("tokenizer.ggml.bos_token_id", 5);
  out.add_u32("tokenizer.ggml.eos_token_id", 6);
  out.add_u32("tokenizer.ggml.eot_token_id", 7);
  out.add_bool("tokenizer.ggml.add_bos_token", true);
  out.add_string("tokenizer.chat_template", "{{ messages }}");
  for (GgufWriter::Tensor& tensor : small_gguf_tensors(arch)) out.add_tensor(std::move(tensor));
  return out;
}

std::string small_config() {
  return R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32,
    "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "vocab_size": 8, "max_position_embeddings": 256, "eos_token_id": 6, "tie_word_embeddings": true})";
}

std::string safetensors_file(const std::string& header, size_t data_bytes) {
  return raw_bytes<uint64_t>(header.size()) + header + std::string(data_bytes, '\0');
}

std::string small_safetensors_header(size_t* data_bytes) {
  std::string header;
  size_t offset = 0;
  for (const DecoderTensor& tensor : decoder_tensors(parse_config_json(small_config(), "config.json"))) {
    size_t bytes = 4;
    std::string shape;
    for (const int64_t size : tensor.shape) {
      bytes *= static_cast<size_t>(size);
      shape += str(shape.empty() ? "" : ",", size);
    }
    header += str(header.empty() ? "{" : ",", "\"", tensor.name, "\":{\"dtype\":\"F32\",\"shape\":[", shape,
                  "],\"data_offsets\":[", offset, ",", offset + bytes, "]}");
    offset += bytes;
  }
  *data_bytes = offset;
  return header + "}";
}

}  // namespace headrace::testing_support
