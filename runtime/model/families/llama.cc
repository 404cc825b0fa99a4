// Llama 2, 3, 3.1, 3.2 and 3.3, SmolLM2, and what else is stored as Llama. In GGUF files Mistral is.
#include "runtime/base/json_file.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

void read_llama(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  AttentionSpec attention = read_heads(fields, *config, {.kv_heads = true});
  attention.qkv_bias = attention.output_bias = fields.boolean_or("attention_bias", false);
  read_layers(fields, attention, config);
}

}  // namespace

const Family& llama_family() {
  static const Family family = {
      .json = {{.name = "llama", .model_types = {"llama"}, .architectures = {"LlamaForCausalLM"}, .read = read_llama}},
      .gguf = {{.architecture = "llama",
                .also = "Mistral and SmolLM2",
                .read = read_decoder,
                .tensors = llama_like_tensors(),
                .rotary_pairs = true}}};
  return family;
}

}  // namespace headrace
