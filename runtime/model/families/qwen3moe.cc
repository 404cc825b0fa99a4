// Qwen3-MoE: Qwen3-30B-A3B, Qwen3-Coder-30B-A3B, Qwen3-235B-A22B. Qwen3 with experts in place of each layer's
// feed-forward part.
#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/model/config_check.h"
#include "runtime/model/families/llama_like.h"

namespace headrace {
namespace {

void refuse_qwen3moe_window(const JsonFields& fields, const ModelConfig& config) {
  if (fields.boolean_or("use_sliding_window", false)) refuse_window(fields, config, 4096);
}

ExpertsSpec read_experts(const JsonFields& fields) {
  const char* const count = fields.has("num_experts") ? "num_experts" : "num_local_experts";
  ExpertsSpec experts = read_expert_counts(fields, {.count = count, .usual_count = 128, .usual_used = 8});
  experts.width = fields.integer_or("moe_intermediate_size", 1, kMaxFfn, 768);
  experts.normalised = fields.boolean_or("norm_topk_prob", false);
  return experts;
}

void read_qwen3moe(const JsonFields& fields, ModelConfig* config) {
  read_sizes(fields, config);
  refuse_qwen3moe_window(fields, *config);
  refuse_dense_layers(fields);
  AttentionSpec attention = read_heads(fields, *config, {});
  attention.qkv_bias = attention.output_bias = fields.boolean_or("attention_bias", false);
  attention.qk_norm = true;
  read_layers(fields, LayerSpec{.mixer = attention, .ffn = {.experts = read_experts(fields)}}, config);
}

// Old files do not say how wide an expert is: then feed_forward_length is that of all that a token uses.
void read_qwen3moe_gguf(const GgufSource& source, ModelConfig* config) {
  const GgufFields& fields = source.fields;
  read_sizes(source, config, Mixtures::kAllowed);
  refuse_query_scale(source);
  read_rope(source, config);
  AttentionSpec attention = read_heads(source, *config);
  attention.qk_norm = true;
  ExpertsSpec experts = read_expert_counts(source);
  const std::string width = source.key("expert_feed_forward_length");
  experts.width = fields.has(width) ? fields.integer(width, 1, kMaxFfn)
                                    : fields.integer(source.key("feed_forward_length"), 1, kMaxFfn) / experts.used;
  if (experts.width < 1) fields.refuse(source.key("feed_forward_length"), str("leaves experts of ", experts.width));
  read_layers(source, LayerSpec{.mixer = attention, .ffn = {.experts = experts}}, config);
}

// The matrices of all experts are one tensor.
std::vector<TensorName> qwen3moe_tensors() {
  std::vector<TensorName> names = {{"ffn_gate_inp", "mlp.gate"},
                                   {"ffn_gate_exps", "mlp.experts.gate_proj"},
                                   {"ffn_up_exps", "mlp.experts.up_proj"},
                                   {"ffn_down_exps", "mlp.experts.down_proj"}};
  names.insert(names.end(), llama_like_tensors().begin(), llama_like_tensors().end());
  return names;
}

}  // namespace

const Family& qwen3moe_family() {
  static const Family family = {
      .json = {{.name = "qwen3moe",
                .model_types = {"qwen3_moe"},
                .architectures = {"Qwen3MoeForCausalLM"},
                .read = read_qwen3moe}},
      .gguf = {{.architecture = "qwen3moe", .also = "", .read = read_qwen3moe_gguf, .tensors = qwen3moe_tensors()}}};
  return family;
}

}  // namespace headrace
