#include "runtime/draft/eagle3_weights.h"

#include <string>

namespace headrace {
namespace {

struct Offsets {
  std::array<uint64_t, 3> fc, fc_norm;
  uint64_t input_norm, hidden_norm, qkv, output, ffn_norm, gate_up, down, final_norm, head, embedding, target_ids;
};

Offsets place_all(const Eagle3Checkpoint& checkpoint, WeightStore* store) {
  const Eagle3Config& c = checkpoint.config();
  const auto tensor = [&](const std::string& name) {  // shapes were checked when it was opened
    const TensorInfo* info = checkpoint.find(name);
    CHECK(info != nullptr, name);
    return info;
  };
  Offsets at{};
  for (size_t i = 0; i < 3; ++i) {
    at.fc[i] = store->place({tensor(str("fc.", i, ".weight"))});
    if (c.fc_norm) at.fc_norm[i] = store->place({tensor(str("fc_norm.", i, ".weight"))});
  }
  at.input_norm = store->place({tensor("midlayer.input_layernorm.weight")});
  at.hidden_norm = store->place({tensor("midlayer.hidden_norm.weight")});
  at.qkv = store->place({tensor("midlayer.self_attn.q_proj.weight"), tensor("midlayer.self_attn.k_proj.weight"),
                         tensor("midlayer.self_attn.v_proj.weight")});
  at.output = store->place({tensor("midlayer.self_attn.o_proj.weight")});
  at.ffn_norm = store->place({tensor("midlayer.post_attention_layernorm.weight")});
  at.gate_up = store->place({tensor("midlayer.mlp.gate_proj.weight"), tensor("midlayer.mlp.up_proj.weight")});
  at.down = store->place({tensor("midlayer.mlp.down_proj.weight")});
  at.final_norm = store->place({tensor("norm.weight")});
  if (c.own_head) at.head = store->place({tensor("lm_head.weight")});
  if (c.own_embedding) at.embedding = store->place({tensor("embed_tokens.weight")});
  const std::vector<int32_t>& ids = checkpoint.target_ids();
  at.target_ids = store->place_raw({reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)});
  return at;
}

}  // namespace

Eagle3Weights Eagle3Weights::reserve(const Eagle3Checkpoint& checkpoint, Device& device, DType dtype) {
  const Eagle3Config& c = checkpoint.config();
  Eagle3Weights weights;
  WeightStore& store = weights.store_ = WeightStore(dtype);
  const Offsets at = place_all(checkpoint, &store);
  store.allocate(device, "weights of the draft");
  Views& v = weights.views_;
  for (size_t i = 0; i < 3; ++i) {
    v.fc[i] = store.at(at.fc[i]);
    if (c.fc_norm) v.fc_norm[i] = store.at(at.fc_norm[i]);
  }
  v.input_norm = store.at(at.input_norm);
  v.hidden_norm = store.at(at.hidden_norm);
  v.qkv = store.at(at.qkv);
  v.output = store.at(at.output);
  v.ffn_norm = store.at(at.ffn_norm);
  v.gate_up = store.at(at.gate_up);
  v.down = store.at(at.down);
  v.final_norm = store.at(at.final_norm);
  if (c.own_head) v.head = store.at(at.head);
  if (c.own_embedding) v.embedding = store.at(at.embedding);
  v.target_ids = reinterpret_cast<const int32_t*>(store.at(at.target_ids));
  return weights;
}

bool Eagle3Weights::load(const Eagle3Checkpoint& checkpoint, Device& device, Progress* progress,
                         const std::atomic<bool>* interrupt) {
  return store_.load(checkpoint, device, "loading the draft", progress, interrupt);
}

}  // namespace headrace
