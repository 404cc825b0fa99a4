// A model's weights on the device, in the shapes that the forward pass multiplies with: q, k and v as one matrix, gate
// and up as one. Owns one device buffer; the views below point into it. Immutable once loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/weight_store.h"

namespace headrace {

// All of the weights' type; [out, in], row-major. Null where the family has none.
struct LayerWeights {
  const void* input_norm = nullptr;   // [hidden]
  const void* qkv = nullptr;          // [(heads + 2 kv_heads) * head_dim, hidden]
  const void* qkv_bias = nullptr;     // [(heads + 2 kv_heads) * head_dim]
  const void* q_norm = nullptr;       // [head_dim]
  const void* k_norm = nullptr;       // [head_dim]
  const void* output = nullptr;       // [hidden, heads * head_dim]
  const void* output_bias = nullptr;  // [hidden]
  const void* ffn_norm = nullptr;     // [hidden]
  const void* gate_up = nullptr;      // [2 * ffn, hidden]
  const void* down = nullptr;         // [hidden, ffn]
};

class Weights {
 public:
  // Checks names and shapes and reserves the whole, before a byte is read. `checkpoint` must outlive load().
  static Weights reserve(const Checkpoint& checkpoint, Device& device, DType dtype);
  // False if `interrupt` was set on the way: then nothing is loaded. `progress` and `interrupt` may be null.
  bool load(const Checkpoint& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt);
  bool loaded() const { return store_.loaded(); }
  uint64_t staging_bytes() const { return store_.staging_bytes(); }  // as WeightStore
  const std::vector<std::string>& damage() const { return store_.damage(); }

  DType dtype() const { return store_.dtype(); }
  uint64_t bytes() const { return store_.bytes(); }
  const LayerWeights& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  const void* embedding() const { return embedding_; }    // [vocab, hidden]
  const void* final_norm() const { return final_norm_; }  // [hidden]
  const void* head() const { return head_; }              // [vocab, hidden]; the embedding where the head is tied

 private:
  WeightStore store_;
  std::vector<LayerWeights> layers_;
  const void *embedding_ = nullptr, *final_norm_ = nullptr, *head_ = nullptr;
};

}  // namespace headrace
