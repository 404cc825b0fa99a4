#include "runtime/model/weights.h"

#include "runtime/model/weight_places.h"

namespace headrace {
namespace {

void place_layer(const Checkpoint& checkpoint, int64_t index, LayerWeights* w, WeightPlaces* places) {
  const ModelConfig& c = checkpoint.config();
  const int64_t q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  const auto tensor = [&](const char* name, std::vector<int64_t> shape) {
    return &checkpoint.require(str("model.layers.", index, ".", name), shape);
  };
  places->place(&w->input_norm, {tensor("input_layernorm.weight", {c.hidden})});
  places->place(&w->qkv,
                {tensor("self_attn.q_proj.weight", {q, c.hidden}), tensor("self_attn.k_proj.weight", {kv, c.hidden}),
                 tensor("self_attn.v_proj.weight", {kv, c.hidden})});
  if (c.qkv_bias)
    places->place(&w->qkv_bias, {tensor("self_attn.q_proj.bias", {q}), tensor("self_attn.k_proj.bias", {kv}),
                                 tensor("self_attn.v_proj.bias", {kv})});
  if (c.qk_norm) {
    places->place(&w->q_norm, {tensor("self_attn.q_norm.weight", {c.head_dim})});
    places->place(&w->k_norm, {tensor("self_attn.k_norm.weight", {c.head_dim})});
  }
  places->place(&w->output, {tensor("self_attn.o_proj.weight", {c.hidden, q})});
  if (c.output_bias) places->place(&w->output_bias, {tensor("self_attn.o_proj.bias", {c.hidden})});
  places->place(&w->ffn_norm, {tensor("post_attention_layernorm.weight", {c.hidden})});
  places->place(&w->gate_up,
                {tensor("mlp.gate_proj.weight", {c.ffn, c.hidden}), tensor("mlp.up_proj.weight", {c.ffn, c.hidden})});
  places->place(&w->down, {tensor("mlp.down_proj.weight", {c.hidden, c.ffn})});
}

}  // namespace

Weights Weights::reserve(const Checkpoint& checkpoint, Device& device, const WeightStoreOptions& options) {
  const ModelConfig& c = checkpoint.config();
  Weights weights;
  weights.store_ = WeightStore(options, device.backend());
  WeightPlaces places(&weights.store_);
  places.place(&weights.embedding_, {&checkpoint.require("model.embed_tokens.weight", {c.vocab, c.hidden})});
  weights.layers_.resize(static_cast<size_t>(c.layers));
  for (int64_t i = 0; i < c.layers; ++i) place_layer(checkpoint, i, &weights.layers_[static_cast<size_t>(i)], &places);
  places.place(&weights.final_norm_, {&checkpoint.require("model.norm.weight", {c.hidden})});
  if (!c.tied_head) places.place(&weights.head_, {&checkpoint.require("lm_head.weight", {c.vocab, c.hidden})});
  places.allocate(device, "weights");
  if (c.tied_head) weights.head_ = weights.embedding_;
  return weights;
}

uint64_t Weights::layers_bytes() const {
  uint64_t bytes = 0;
  for (const LayerWeights& w : layers_) {
    for (const Weight* weight : {&w.qkv, &w.output, &w.gate_up, &w.down}) bytes += stored_bytes(*weight);
  }
  return bytes;
}

bool Weights::load(const Checkpoint& checkpoint, Device& device, Progress* progress,
                   const std::atomic<bool>* interrupt) {
  return store_.load(checkpoint, device, "loading weights", progress, interrupt);
}

}  // namespace headrace
