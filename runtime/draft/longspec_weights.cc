#include "runtime/draft/longspec_weights.h"

#include <string>
#include <utility>
#include <vector>

namespace headrace {

LongSpecWeights LongSpecWeights::reserve(const LongSpecCheckpoint& checkpoint, Device& device, DType dtype) {
  LongSpecWeights weights;
  WeightStore& store = weights.store_ = WeightStore(dtype);
  std::vector<std::pair<const void**, uint64_t>> places;  // views come with the memory
  const auto tensor = [&](const std::string& name) {      // shapes were checked when it was opened
    const TensorInfo* info = checkpoint.find(name);
    CHECK(info != nullptr, name);
    return info;
  };
  const auto place = [&](const void** view, std::initializer_list<const TensorInfo*> parts) {
    places.emplace_back(view, store.place(parts));
  };
  Views& v = weights.views_;
  place(&v.input_norm, {tensor("input_layernorm.weight")});
  place(&v.qkv,
        {tensor("self_attn.q_proj.weight"), tensor("self_attn.k_proj.weight"), tensor("self_attn.v_proj.weight")});
  place(&v.qkv_bias,
        {tensor("self_attn.q_proj.bias"), tensor("self_attn.k_proj.bias"), tensor("self_attn.v_proj.bias")});
  place(&v.output, {tensor("self_attn.o_proj.weight")});
  place(&v.cross_norm, {tensor("post_self_attention_layernorm.weight")});
  place(&v.cross_q, {tensor("cross_attn.q_proj.weight")});
  place(&v.cross_bias, {tensor("cross_attn.q_proj.bias")});
  place(&v.cross_output, {tensor("cross_attn.o_proj.weight")});
  place(&v.ffn_norm, {tensor("post_cross_attention_layernorm.weight")});
  place(&v.gate_up, {tensor("mlp.gate_proj.weight"), tensor("mlp.up_proj.weight")});
  place(&v.down, {tensor("mlp.down_proj.weight")});
  store.allocate(device, "weights of the draft");
  for (const auto& [view, offset] : places) *view = store.at(offset);
  return weights;
}

bool LongSpecWeights::load(const LongSpecCheckpoint& checkpoint, Device& device, Progress* progress,
                           const std::atomic<bool>* interrupt) {
  return store_.load(checkpoint, device, "loading the draft", progress, interrupt);
}

}  // namespace headrace
