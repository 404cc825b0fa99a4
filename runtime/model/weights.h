// A model's weights on the device, in the shapes that the forward pass multiplies with: q, k and v as one matrix, gate
// and up as one; matrices that a file has quantised stay so if they are to be kept. Owns one device buffer; the views
// below point into it. Immutable once loaded.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

#include "offload/device/device.h"
#include "runtime/base/progress.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/weight_store.h"

namespace headrace {

// Vectors are of the weights' type; matrices are [out, in]. Null where the layer has none.
struct LayerWeights {
  LayerSpec spec;
  const void* input_norm = nullptr;   // [hidden]
  Weight qkv;                         // [(heads + 2 kv_heads) * head_dim, hidden]
  const void* qkv_bias = nullptr;     // [(heads + 2 kv_heads) * head_dim]
  const void* q_norm = nullptr;       // [head_dim]
  const void* k_norm = nullptr;       // [head_dim]
  Weight output;                      // [hidden, heads * head_dim]
  const void* output_bias = nullptr;  // [hidden]
  const void* ffn_norm = nullptr;     // [hidden]
  Weight gate_up;                     // [2 * ffn, hidden]
  Weight down;                        // [hidden, ffn]
};

// What a matrix takes in the compute type, between others.
inline uint64_t unpacked_bytes(const Weight& weight, DType type) {
  return round_up(weight_bytes(plain_weight_type(type), weight.rows(), weight.cols), 256);
}

// What a matrix takes as it is stored in a file, or in the compute type where it is not kept.
inline uint64_t stored_bytes(const Weight& weight) {
  uint64_t bytes = 0;
  for (const WeightPart& part : weight.parts) bytes += weight_bytes(part.type, part.rows, weight.cols);
  return bytes;
}

class Weights {
 public:
  // Checks names and shapes and reserves the whole, before a byte is read. `checkpoint` must outlive load().
  static Weights reserve(const Checkpoint& checkpoint, Device& device, const WeightStoreOptions& options);
  // False if `interrupt` was set on the way: then nothing is loaded. `progress` and `interrupt` may be null.
  bool load(const Checkpoint& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt);
  bool loaded() const { return store_.loaded(); }
  uint64_t staging_bytes() const { return store_.staging_bytes(); }  // as WeightStore
  const WeightDamage& damage() const { return store_.damage(); }

  const WeightStoreOptions& options() const { return store_.options(); }
  DType dtype() const { return store_.dtype(); }  // of vectors and of matrices that are not kept in blocks
  bool keeps_blocks() const { return store_.keeps_blocks(); }
  std::optional<WeightType> quantises_to() const { return store_.quantises_to(); }
  uint64_t bytes() const { return store_.bytes(); }
  std::vector<WeightTypeUse> types() const { return store_.types(); }
  uint64_t layers_bytes() const;  // of the layers' matrices: stored_bytes()
  const LayerWeights& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  const Weight& embedding() const { return embedding_; }  // [vocab, hidden]
  const void* final_norm() const { return final_norm_; }  // [hidden]
  const Weight& head() const { return head_; }            // [vocab, hidden]; the embedding where the head is tied

 private:
  WeightStore store_;
  std::vector<LayerWeights> layers_;
  const void* final_norm_ = nullptr;
  Weight embedding_, head_;
};

}  // namespace headrace
