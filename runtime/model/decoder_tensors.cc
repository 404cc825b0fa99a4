#include "runtime/model/decoder_tensors.h"

#include "cache/base.h"

namespace headrace {
namespace {

void append_layer(const ModelConfig& config, int64_t layer, std::vector<DecoderTensor>* out) {
  const std::string prefix = str("model.layers.", layer, ".");
  const AttentionSpec& attention = config.layer(layer).attention();
  const int64_t q = attention.q_width(), kv = attention.kv_width(), ffn = config.layer(layer).ffn.width;
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    out->push_back({prefix + name, std::move(shape)});
  };
  add("input_layernorm.weight", {config.hidden});
  add("self_attn.q_proj.weight", {q, config.hidden});
  add("self_attn.k_proj.weight", {kv, config.hidden});
  add("self_attn.v_proj.weight", {kv, config.hidden});
  if (attention.qkv_bias) {
    add("self_attn.q_proj.bias", {q});
    add("self_attn.k_proj.bias", {kv});
    add("self_attn.v_proj.bias", {kv});
  }
  if (attention.qk_norm) {
    add("self_attn.q_norm.weight", {attention.head_dim});
    add("self_attn.k_norm.weight", {attention.head_dim});
  }
  add("self_attn.o_proj.weight", {config.hidden, q});
  if (attention.output_bias) add("self_attn.o_proj.bias", {config.hidden});
  add("post_attention_layernorm.weight", {config.hidden});
  add("mlp.gate_proj.weight", {ffn, config.hidden});
  add("mlp.up_proj.weight", {ffn, config.hidden});
  add("mlp.down_proj.weight", {config.hidden, ffn});
}

}  // namespace

std::vector<DecoderTensor> decoder_tensors(const ModelConfig& config) {
  std::vector<DecoderTensor> out;
  out.push_back({"model.embed_tokens.weight", {config.vocab, config.hidden}});
  for (int64_t layer = 0; layer < config.layer_count(); ++layer) append_layer(config, layer, &out);
  out.push_back({"model.norm.weight", {config.hidden}});
  if (!config.tied_head) out.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  return out;
}

}  // namespace headrace
