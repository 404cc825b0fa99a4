// Qwen2.5, as Qwen2: q, k and v have biases. Qwen3: each head of q and k is normalised.
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

// The window is that of the layers from max_window_layers on.
void refuse_qwen_windows(const JsonFields& fields, const ModelConfig& config) {
  if (!fields.boolean_or("use_sliding_window", false)) return;
  const int64_t layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  if (fields.integer_or("max_window_layers", 0, INT64_MAX, 28) < layers) refuse_window(fields, config, 4096);
}

void read_qwen2(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_qwen_windows(fields, *config);
  AttentionSpec attention = read_heads(fields, *config, {});
  attention.qkv_bias = true;
  read_layers(fields, attention, config);
}

void read_qwen3(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_qwen_windows(fields, *config);
  AttentionSpec attention = read_heads(fields, *config, {.head_dim = 128});
  attention.qkv_bias = attention.output_bias = fields.boolean_or("attention_bias", false);
  attention.qk_norm = true;
  read_layers(fields, attention, config);
}

AttentionSpec begin_qwen_gguf(const GgufSource& source, ModelConfig* config) {
  read_sizes(source, config);
  refuse_query_scale(source);
  read_rope(source, config);
  return read_heads(source, *config);
}

void read_qwen2_gguf(const GgufSource& source, ModelConfig* config) {
  AttentionSpec attention = begin_qwen_gguf(source, config);
  attention.qkv_bias = true;
  read_layers(source, attention, config);
}

void read_qwen3_gguf(const GgufSource& source, ModelConfig* config) {
  AttentionSpec attention = begin_qwen_gguf(source, config);
  attention.qk_norm = true;
  read_layers(source, attention, config);
}

}  // namespace

const Family& qwen_family() {
  static const Family family = {
      .json = {{.name = "qwen2", .model_types = {"qwen2"}, .architectures = {"Qwen2ForCausalLM"}, .read = read_qwen2},
               {.name = "qwen3", .model_types = {"qwen3"}, .architectures = {"Qwen3ForCausalLM"}, .read = read_qwen3}},
      .gguf = {{.architecture = "qwen2", .also = "", .read = read_qwen2_gguf, .tensors = llama_like_tensors()},
               {.architecture = "qwen3", .also = "", .read = read_qwen3_gguf, .tensors = llama_like_tensors()}}};
  return family;
}

}  // namespace headrace
