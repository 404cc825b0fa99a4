#include "runtime/model/weights.h"

namespace headrace {
namespace {

struct LayerOffsets {
  uint64_t input_norm, qkv, qkv_bias, q_norm, k_norm, output, output_bias, ffn_norm, gate_up, down;
};

LayerOffsets place_layer(const Checkpoint& checkpoint, int64_t index, WeightStore* store) {
  const ModelConfig& c = checkpoint.config();
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const auto tensor = [&](const char* name, std::vector<int64_t> shape) {
    return &checkpoint.require(str("model.layers.", index, ".", name), shape);
  };
  LayerOffsets at{};
  at.input_norm = store->place({tensor("input_layernorm.weight", {c.hidden})});
  at.qkv =
      store->place({tensor("self_attn.q_proj.weight", {q, c.hidden}), tensor("self_attn.k_proj.weight", {kv, c.hidden}),
                    tensor("self_attn.v_proj.weight", {kv, c.hidden})});
  if (c.qkv_bias)
    at.qkv_bias = store->place({tensor("self_attn.q_proj.bias", {q}), tensor("self_attn.k_proj.bias", {kv}),
                                tensor("self_attn.v_proj.bias", {kv})});
  if (c.qk_norm) {
    at.q_norm = store->place({tensor("self_attn.q_norm.weight", {c.head_dim})});
    at.k_norm = store->place({tensor("self_attn.k_norm.weight", {c.head_dim})});
  }
  at.output = store->place({tensor("self_attn.o_proj.weight", {c.hidden, q})});
  if (c.output_bias) at.output_bias = store->place({tensor("self_attn.o_proj.bias", {c.hidden})});
  at.ffn_norm = store->place({tensor("post_attention_layernorm.weight", {c.hidden})});
  at.gate_up = store->place(
      {tensor("mlp.gate_proj.weight", {c.ffn, c.hidden}), tensor("mlp.up_proj.weight", {c.ffn, c.hidden})});
  at.down = store->place({tensor("mlp.down_proj.weight", {c.hidden, c.ffn})});
  return at;
}

LayerWeights views(const ModelConfig& c, const LayerOffsets& at, const WeightStore& store) {
  LayerWeights w;
  w.input_norm = store.at(at.input_norm);
  w.qkv = store.at(at.qkv);
  if (c.qkv_bias) w.qkv_bias = store.at(at.qkv_bias);
  if (c.qk_norm) w.q_norm = store.at(at.q_norm), w.k_norm = store.at(at.k_norm);
  w.output = store.at(at.output);
  if (c.output_bias) w.output_bias = store.at(at.output_bias);
  w.ffn_norm = store.at(at.ffn_norm);
  w.gate_up = store.at(at.gate_up);
  w.down = store.at(at.down);
  return w;
}

}  // namespace

Weights Weights::reserve(const Checkpoint& checkpoint, Device& device, DType dtype) {
  const ModelConfig& c = checkpoint.config();
  Weights weights;
  WeightStore& store = weights.store_ = WeightStore(dtype);
  const uint64_t embedding = store.place({&checkpoint.require("model.embed_tokens.weight", {c.vocab, c.hidden})});
  std::vector<LayerOffsets> at;
  for (int64_t i = 0; i < c.layers; ++i) at.push_back(place_layer(checkpoint, i, &store));
  const uint64_t final_norm = store.place({&checkpoint.require("model.norm.weight", {c.hidden})});
  const uint64_t head =
      c.tied_head ? embedding : store.place({&checkpoint.require("lm_head.weight", {c.vocab, c.hidden})});
  store.allocate(device, "weights");
  for (const LayerOffsets& offsets : at) weights.layers_.push_back(views(c, offsets, store));
  weights.embedding_ = store.at(embedding);
  weights.final_norm_ = store.at(final_norm);
  weights.head_ = store.at(head);
  return weights;
}

bool Weights::load(const Checkpoint& checkpoint, Device& device, Progress* progress,
                   const std::atomic<bool>* interrupt) {
  return store_.load(checkpoint, device, "loading weights", progress, interrupt);
}

}  // namespace headrace
