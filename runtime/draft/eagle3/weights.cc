#include "runtime/draft/eagle3/weights.h"

namespace headrace {

void place_views(const Eagle3Checkpoint& checkpoint, Eagle3Views* views, WeightPlaces* places) {
  const Eagle3Config& c = checkpoint.config();
  Eagle3Views& v = *views;
  v.spec = c.layer();
  const auto tensor = [&](const std::string& name) {
    const TensorInfo* info = checkpoint.find(name);
    CHECK(info != nullptr, name);
    return info;
  };
  for (size_t i = 0; i < 3; ++i) {
    places->place_plain(&v.fc[i], {tensor(str("fc.", i, ".weight"))});
    if (c.fc_norm) places->place(&v.fc_norm[i], {tensor(str("fc_norm.", i, ".weight"))});
  }
  const std::string layer = "midlayer.";
  places->place(&v.input_norm, {tensor(layer + "input_layernorm.weight")});
  places->place(&v.hidden_norm, {tensor(layer + "hidden_norm.weight")});
  places->place_plain(&v.qkv, {tensor(layer + "self_attn.q_proj.weight"), tensor(layer + "self_attn.k_proj.weight"),
                               tensor(layer + "self_attn.v_proj.weight")});
  places->place(&v.output, {tensor(layer + "self_attn.o_proj.weight")});
  places->place(&v.ffn_norm, {tensor(layer + "post_attention_layernorm.weight")});
  places->place(&v.gate_up, {tensor(layer + "mlp.gate_proj.weight"), tensor(layer + "mlp.up_proj.weight")});
  places->place(&v.down, {tensor(layer + "mlp.down_proj.weight")});
  places->place(&v.final_norm, {tensor("norm.weight")});
  if (c.own_head) places->place(&v.head, {tensor("lm_head.weight")});
  if (c.own_embedding) places->place(&v.embedding, {tensor("embed_tokens.weight")});
  const std::vector<int32_t>& ids = checkpoint.target_ids();
  places->place_raw(&v.target_ids, {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
}

}  // namespace headrace
