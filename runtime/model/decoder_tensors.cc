#include "runtime/model/decoder_tensors.h"

#include "cache/base.h"

namespace headrace {
namespace {

using Tensors = std::vector<DecoderTensor>;

void append_attention(const AttentionSpec& attention, int64_t hidden, const std::string& layer, Tensors* out) {
  const int64_t q = attention.q_width(), kv = attention.kv_width();
  const auto add = [&, prefix = layer + "self_attn."](const char* name, std::vector<int64_t> shape) {
    out->push_back({prefix + name, std::move(shape)});
  };
  add("q_proj.weight", {q, hidden});
  const bool own = attention.makes_rows();
  if (own) add("k_proj.weight", {kv, hidden});
  if (own && !attention.k_is_v) add("v_proj.weight", {kv, hidden});
  if (attention.gated_output) add("gate_proj.weight", {q, hidden});
  if (attention.qkv_bias) {
    add("q_proj.bias", {q});
    add("k_proj.bias", {kv});
    add("v_proj.bias", {kv});
  }
  if (attention.qk_norm) {
    add("q_norm.weight", {attention.head_dim});
    if (own) add("k_norm.weight", {attention.head_dim});
  }
  add("o_proj.weight", {hidden, q});
  if (attention.output_bias) add("o_proj.bias", {hidden});
  if (attention.sinks) add("sinks", {attention.heads});
}

void append_delta_net(const DeltaNetSpec& delta, int64_t hidden, const std::string& layer, Tensors* out) {
  const auto add = [&, prefix = layer + "linear_attn."](const char* name, std::vector<int64_t> shape) {
    out->push_back({prefix + name, std::move(shape)});
  };
  add("in_proj_qkv.weight", {delta.channels(), hidden});
  add("in_proj_z.weight", {delta.v_width(), hidden});
  add("in_proj_b.weight", {delta.v_heads, hidden});
  add("in_proj_a.weight", {delta.v_heads, hidden});
  add("conv1d.weight", {delta.channels() * delta.conv});
  add("A", {delta.v_heads});
  add("dt_bias", {delta.v_heads});
  add("norm.weight", {delta.v_dim});
  add("out_proj.weight", {hidden, delta.v_width()});
}

void append_ffn(const FfnSpec& ffn, int64_t hidden, const std::string& prefix, Tensors* out) {
  const auto add = [&](const std::string& of, int64_t width) {
    out->push_back({of + "gate_proj.weight", {width, hidden}});
    out->push_back({of + "up_proj.weight", {width, hidden}});
    out->push_back({of + "down_proj.weight", {hidden, width}});
  };
  const bool shared = ffn.experts && ffn.experts->shared;
  if (ffn.width > 0) add(prefix + (shared ? "mlp.shared_expert." : "mlp."), ffn.width);
  if (!ffn.experts) return;
  out->push_back({prefix + "mlp.gate.weight", {ffn.experts->count, hidden}});
  if (shared) out->push_back({prefix + "mlp.shared_expert_gate.weight", {1, hidden}});
  if (ffn.experts->beside) {
    out->push_back({prefix + "mlp.gate.scale", {hidden}});
    out->push_back({prefix + "mlp.experts.scale", {ffn.experts->count}});
    for (const char* const name : kBesideNorms) out->push_back({prefix + name, {hidden}});
  }
  if (ffn.experts->bias) out->push_back({prefix + "mlp.gate.bias", {ffn.experts->count}});
  for (int64_t e = 0; e < ffn.experts->count; ++e) {
    const std::string expert = str(prefix, "mlp.experts.", e, ".");
    add(expert, ffn.experts->width);
    if (!ffn.experts->bias) continue;
    out->push_back({expert + "gate_proj.bias", {ffn.experts->width}});
    out->push_back({expert + "up_proj.bias", {ffn.experts->width}});
    out->push_back({expert + "down_proj.bias", {hidden}});
  }
}

void append_layer(const LayerSpec& layer, int64_t hidden, const std::string& prefix, Tensors* out) {
  out->push_back({prefix + "input_layernorm.weight", {hidden}});
  if (layer.has_attention()) {
    append_attention(layer.attention(), hidden, prefix, out);
  } else {
    append_delta_net(layer.delta_net(), hidden, prefix, out);
  }
  out->push_back({prefix + "post_attention_layernorm.weight", {hidden}});
  if (layer.output_norms) out->push_back({prefix + "pre_feedforward_layernorm.weight", {hidden}});
  append_ffn(layer.ffn, hidden, prefix, out);
  if (layer.output_norms) out->push_back({prefix + "post_feedforward_layernorm.weight", {hidden}});
  if (layer.scaled) out->push_back({prefix + "layer_scalar", {1}});
  if (layer.token_width == 0) return;
  out->push_back({prefix + "per_layer_input_gate.weight", {layer.token_width, hidden}});
  out->push_back({prefix + "per_layer_projection.weight", {hidden, layer.token_width}});
  out->push_back({prefix + "post_per_layer_input_norm.weight", {hidden}});
}

void append_mtp(const MtpSpec& mtp, int64_t hidden, Tensors* out) {
  out->push_back({"mtp.pre_fc_norm_embedding.weight", {hidden}});
  out->push_back({"mtp.pre_fc_norm_hidden.weight", {hidden}});
  out->push_back({"mtp.fc.weight", {hidden, 2 * hidden}});
  append_layer(mtp.layer, hidden, "mtp.layers.0.", out);
  if (mtp.own_norm) out->push_back({"mtp.norm.weight", {hidden}});
}

}  // namespace

std::vector<DecoderTensor> decoder_tensors(const ModelConfig& config) {
  std::vector<DecoderTensor> out;
  out.push_back({"model.embed_tokens.weight", {config.vocab, config.hidden}});
  for (int64_t layer = 0; layer < config.layer_count(); ++layer) {
    append_layer(config.layer(layer), config.hidden, str("model.layers.", layer, "."), &out);
  }
  if (const int64_t width = config.token_width(); width > 0) {
    const int64_t layers = config.layer_count();
    out.push_back({"model.embed_tokens_per_layer.weight", {config.vocab * layers, width}});
    out.push_back({"model.per_layer_model_projection.weight", {layers * width, config.hidden}});
    out.push_back({"model.per_layer_projection_norm.weight", {width}});
  }
  out.push_back({"model.norm.weight", {config.hidden}});
  if (!config.tied_head) out.push_back({"lm_head.weight", {config.vocab, config.hidden}});
  if (config.mtp) append_mtp(*config.mtp, config.hidden, &out);
  return out;
}

}  // namespace headrace
