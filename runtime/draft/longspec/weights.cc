#include "runtime/draft/longspec/weights.h"

namespace headrace {

void place_views(const LongSpecCheckpoint& checkpoint, LongSpecViews* views, WeightPlaces* places) {
  LongSpecViews& v = *views;
  const auto tensor = [&](const std::string& name) {
    const TensorInfo* info = checkpoint.find(name);
    CHECK(info != nullptr, name);
    return info;
  };
  places->place(&v.input_norm, {tensor("input_layernorm.weight")});
  places->place(&v.qkv, {tensor("self_attn.q_proj.weight"), tensor("self_attn.k_proj.weight"),
                         tensor("self_attn.v_proj.weight")});
  places->place(&v.qkv_bias,
                {tensor("self_attn.q_proj.bias"), tensor("self_attn.k_proj.bias"), tensor("self_attn.v_proj.bias")});
  places->place(&v.output, {tensor("self_attn.o_proj.weight")});
  places->place(&v.cross_norm, {tensor("post_self_attention_layernorm.weight")});
  places->place(&v.cross_q, {tensor("cross_attn.q_proj.weight")});
  places->place(&v.cross_bias, {tensor("cross_attn.q_proj.bias")});
  places->place(&v.cross_output, {tensor("cross_attn.o_proj.weight")});
  places->place(&v.ffn_norm, {tensor("post_cross_attention_layernorm.weight")});
  places->place(&v.gate_up, {tensor("mlp.gate_proj.weight"), tensor("mlp.up_proj.weight")});
  places->place(&v.down, {tensor("mlp.down_proj.weight")});
}

}  // namespace headrace
