// Seed-OSS: q, k and v have biases, of which config.json and the file's tensors tell.
#include "runtime/base/json_file.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

void read_seed_oss(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  AttentionSpec attention = read_heads(fields, *config, {.head_dim = 128});
  attention.qkv_bias = fields.boolean_or("attention_bias", true);
  attention.output_bias = fields.boolean_or("attention_out_bias", false);
  read_layers(fields, attention, config);
}

std::vector<TensorName> seed_oss_tensors() {
  std::vector<TensorName> names = {{"post_attention_norm", "post_attention_layernorm"}};
  names.insert(names.end(), llama_like_tensors().begin(), llama_like_tensors().end());
  return names;
}

}  // namespace

const Family& seed_oss_family() {
  static const Family family = {
      .json = {{.name = "seed_oss",
                .model_types = {"seed_oss"},
                .architectures = {"SeedOssForCausalLM"},
                .read = read_seed_oss}},
      .gguf = {{.architecture = "seed_oss", .also = "", .read = read_decoder, .tensors = seed_oss_tensors()}}};
  return family;
}

}  // namespace headrace
