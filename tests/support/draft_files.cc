#include "tests/support/draft_files.h"

#include <filesystem>
#include <fstream>

#include "cache/base.h"

namespace headrace::testing_support {
namespace {

using nlohmann::json;

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

void write_file(const std::string& path, const std::string& text) {
  std::filesystem::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

std::string safetensors_bytes(const std::map<std::string, FileTensor>& tensors) {
  json header = json::object();
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header[name] = {{"dtype", tensor.dtype},
                    {"shape", tensor.shape},
                    {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data;
}

FileTensor f32_tensor(const std::string& name, std::vector<int64_t> shape) {
  size_t elements = 1;
  for (const int64_t size : shape) elements *= static_cast<size_t>(size);
  uint32_t state = 1;
  for (const char c : name) state = state * 31 + static_cast<unsigned char>(c);
  std::vector<float> values(elements);
  for (float& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) * 0x1p-23f - 1.0f;
  }
  return {"F32", std::move(shape), bytes_of(values)};
}

ModelConfig eagle3_target() {
  ModelConfig target;
  target.family = "llama";
  target.layers = same_layers(12, {.mixer = AttentionSpec{.heads = 2, .kv_heads = 2, .head_dim = 4}, .ffn = {16}});
  target.hidden = 8, target.vocab = 20, target.max_positions = 512;
  return target;
}

Eagle3Files::Eagle3Files() {
  config = {{"architectures", {"LlamaForCausalLMEagle3"}},
            {"model_type", "llama"},
            {"hidden_size", 8},
            {"intermediate_size", 10},
            {"num_hidden_layers", 1},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"rms_norm_eps", 1e-5},
            {"vocab_size", 20},
            {"draft_vocab_size", 5}};
  const std::map<std::string, std::vector<int64_t>> shapes = {
      {"fc.weight", {8, 24}},
      {"lm_head.weight", {5, 8}},
      {"norm.weight", {8}},
      {"midlayer.hidden_norm.weight", {8}},
      {"midlayer.input_layernorm.weight", {8}},
      {"midlayer.post_attention_layernorm.weight", {8}},
      {"midlayer.self_attn.q_proj.weight", {12, 16}},
      {"midlayer.self_attn.k_proj.weight", {6, 16}},
      {"midlayer.self_attn.v_proj.weight", {6, 16}},
      {"midlayer.self_attn.o_proj.weight", {8, 12}},
      {"midlayer.mlp.gate_proj.weight", {10, 8}},
      {"midlayer.mlp.up_proj.weight", {10, 8}},
      {"midlayer.mlp.down_proj.weight", {8, 10}},
  };
  for (const auto& [name, shape] : shapes) add(name, shape);
  set_d2t({0, 0, 2, 2, 15});  // target ids 0, 1, 4, 5, 19
  set_t2d({0, 1, 4, 5, 19});
}

void Eagle3Files::set_d2t(const std::vector<int64_t>& offsets) {
  tensors["d2t"] = {"I64", {static_cast<int64_t>(offsets.size())}, bytes_of(offsets)};
}

void Eagle3Files::set_t2d(const std::vector<int64_t>& target_ids) {
  std::string marks(20, '\0');
  for (const int64_t id : target_ids) marks[static_cast<size_t>(id)] = 1;
  tensors["t2d"] = {"BOOL", {20}, marks};
}

LongSpecFiles::LongSpecFiles() {
  config = {{"architectures", {"LlamaGlideDecoderLayer"}},
            {"hidden_size", 8},
            {"intermediate_size", 10},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"rms_norm_eps", 1e-5},
            {"vocab_size", 20}};
  for (const char* norm : {"input_layernorm", "post_self_attention_layernorm", "post_cross_attention_layernorm"}) {
    add(std::string(norm) + ".weight", {8});
  }
  for (const std::string attention : {"self_attn.", "cross_attn."}) {
    for (const auto& [name, rows] : {std::pair{"q_proj", 8}, std::pair{"k_proj", 4}, std::pair{"v_proj", 4}}) {
      add(attention + name + ".weight", {rows, 8});
      add(attention + name + ".bias", {rows});
    }
    add(attention + "o_proj.weight", {8, 8});
  }
  add("mlp.gate_proj.weight", {10, 8});
  add("mlp.up_proj.weight", {10, 8});
  add("mlp.down_proj.weight", {8, 10});
}

ModelConfig longspec_target() {
  ModelConfig target = eagle3_target();
  for (LayerSpec& layer : target.layers) layer.attention().kv_heads = 1;
  return target;
}

void DraftFiles::prefix(const std::string& prefix) {
  std::map<std::string, FileTensor> named;
  for (const auto& [name, tensor] : tensors) named[prefix + name] = tensor;
  tensors = named;
}

void DraftFiles::write(const std::string& folder) const {
  write_file(folder + "/config.json", config.dump(1));
  write_file(folder + "/model.safetensors", safetensors_bytes(tensors));
}

}  // namespace headrace::testing_support
