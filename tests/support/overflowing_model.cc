#include "tests/support/overflowing_model.h"

#include <cstring>

#include "tests/support/draft_files.h"

namespace headrace::testing_support {
namespace {

constexpr int64_t kHidden = 64, kFfn = 96;
constexpr int64_t kColumn = kHidden - 1;  // of the hidden state: 0 for all but the overflowing token

float get(const FileTensor& tensor, size_t index) {
  float value;
  std::memcpy(&value, tensor.bytes.data() + index * sizeof value, sizeof value);
  return value;
}
void set(FileTensor* tensor, int64_t row, int64_t column, float value) {
  const size_t columns = static_cast<size_t>(tensor->shape.back());
  const size_t index = static_cast<size_t>(row) * columns + static_cast<size_t>(column);
  std::memcpy(tensor->bytes.data() + index * sizeof value, &value, sizeof value);
}
void scale(FileTensor* tensor, float factor) {
  const int64_t count = static_cast<int64_t>(tensor->bytes.size() / sizeof(float));
  for (int64_t i = 0; i < count; ++i) {
    const float value = get(*tensor, static_cast<size_t>(i)) * factor;
    std::memcpy(tensor->bytes.data() + static_cast<size_t>(i) * sizeof value, &value, sizeof value);
  }
}

DraftFiles small_llama(int layers) {
  DraftFiles files;
  files.config = {{"architectures", {"LlamaForCausalLM"}},
                  {"model_type", "llama"},
                  {"hidden_size", kHidden},
                  {"intermediate_size", kFfn},
                  {"num_hidden_layers", layers},
                  {"num_attention_heads", 4},
                  {"num_key_value_heads", 2},
                  {"head_dim", 16},
                  {"rms_norm_eps", 1e-5},
                  {"rope_theta", 10000.0},
                  {"max_position_embeddings", 4096},
                  {"vocab_size", kOverflowingVocab},
                  {"tie_word_embeddings", false},
                  {"hidden_act", "silu"},
                  {"torch_dtype", "float32"}};
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns, float factor) {
    files.add(name, {rows, columns});
    scale(&files.tensors[name], factor);
  };
  const auto ones = [&](const std::string& name) {
    files.add(name, {kHidden});
    const float one = 1;
    for (int64_t i = 0; i < kHidden; ++i) {
      std::memcpy(files.tensors[name].bytes.data() + static_cast<size_t>(i) * sizeof one, &one, sizeof one);
    }
  };
  add("model.embed_tokens.weight", kOverflowingVocab, kHidden, 1);
  add("lm_head.weight", kOverflowingVocab, kHidden, 1);
  ones("model.norm.weight");
  for (int layer = 0; layer < layers; ++layer) {
    const std::string at = "model.layers." + std::to_string(layer) + ".";
    ones(at + "input_layernorm.weight");
    ones(at + "post_attention_layernorm.weight");
    add(at + "self_attn.q_proj.weight", 64, kHidden, 0.3f);
    add(at + "self_attn.k_proj.weight", 32, kHidden, 0.3f);
    add(at + "self_attn.v_proj.weight", 32, kHidden, 0.3f);
    add(at + "self_attn.o_proj.weight", kHidden, 64, 0.3f);
    add(at + "mlp.gate_proj.weight", kFfn, kHidden, 0.3f);
    add(at + "mlp.up_proj.weight", kFfn, kHidden, 0.3f);
    add(at + "mlp.down_proj.weight", kHidden, kFfn, 0.3f);
  }
  return files;
}

}  // namespace

void write_overflowing_target(const std::string& folder) {
  DraftFiles files = small_llama(3);
  FileTensor& embedding = files.tensors["model.embed_tokens.weight"];
  for (int32_t token = 0; token < kOverflowingVocab; ++token) {
    set(&embedding, token, kColumn, token == kOverflowingToken ? 8.0f : 0.0f);
  }
  FileTensor& values = files.tensors["model.layers.0.self_attn.v_proj.weight"];
  for (int64_t row = 0; row < values.shape[0]; ++row) set(&values, row, kColumn, 3e38f);
  FileTensor& head = files.tensors["lm_head.weight"];
  for (int64_t column = 0; column < kHidden; ++column) set(&head, kOverflowingToken, column, 0.0f);
  files.write(folder);
}

void write_overflowing_draft(const std::string& folder) {
  DraftFiles files = small_llama(1);
  scale(&files.tensors["lm_head.weight"], 0);
  files.write(folder);
}

}  // namespace headrace::testing_support
