// Phi-4, as Phi-3: q, k and v are one matrix in the files, and so are gate and up.
#include "runtime/base/json_file.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

void read_phi3(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_window(fields, *config, config->max_positions);
  AttentionSpec attention = read_heads(fields, *config, {.kv_heads = true});
  attention.qkv_bias = attention.output_bias = fields.boolean_or("attention_bias", false);
  read_layers(fields, attention, config);
}

std::vector<TensorName> phi3_tensors() {
  std::vector<TensorName> names = {{"ffn_up", "mlp.gate_up_proj"}};  // gate and up, under the name of up
  names.insert(names.end(), llama_like_tensors().begin(), llama_like_tensors().end());
  return names;
}

}  // namespace

const Family& phi3_family() {
  static const Family family = {
      .json = {{.name = "phi3", .model_types = {"phi3"}, .architectures = {"Phi3ForCausalLM"}, .read = read_phi3}},
      .gguf = {{.architecture = "phi3", .also = "", .read = read_decoder, .tensors = phi3_tensors()}}};
  return family;
}

}  // namespace headrace
