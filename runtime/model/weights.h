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

// What a matrix takes as it is stored in a file, or in the compute type where it is not kept.
inline uint64_t stored_bytes(const Weight& weight) {
  uint64_t bytes = 0;
  for (const WeightPart& part : weight.parts) bytes += weight_bytes(part.type, part.rows, weight.cols);
  return bytes;
}

// The matrices of a layer's experts: those of expert 0, and how far apart the experts' are. All are of the same types.
struct ExpertWeights {
  Weight router;                                 // [spec.scores(), hidden], never quantised
  Weight gate_up, down;                          // [2 * width, hidden] and [hidden, width], of expert 0
  uint64_t gate_up_stride = 0, down_stride = 0;  // in bytes
  // The shared expert's matrices have the form of the others and follow them, so it is one more of them.
  bool shared_is_last = false;
  // Where they have biases; else null. Of the router, [count], and of expert 0.
  const void *router_bias = nullptr, *gate_up_bias = nullptr, *down_bias = nullptr;
  uint64_t gate_up_bias_stride = 0, down_bias_stride = 0;
  // Where they are beside the dense part; else null.
  const void* router_scale = nullptr;  // [hidden], of the router's input
  const float* factors = nullptr;      // [count]
  // [hidden] each: of what the dense part makes, of what the experts read, and of what they make.
  const void *dense_norm = nullptr, *norm = nullptr, *output_norm = nullptr;
};

// Vectors are of the weights' type, or f32; matrices are [out, in]. Null where the layer has none.
struct LayerWeights {
  LayerSpec spec;
  const void* input_norm = nullptr;  // [hidden]
  // [spec.in_width(), hidden], the mixer's first product. Attention: q, k, v, and the gates where the output is gated.
  // DeltaNet: q, k and v (its channels), z, b, a; the last two are never quantised.
  Weight qkv;
  const void* qkv_bias = nullptr;     // [(heads + 2 kv_heads) * head_dim]
  const void* q_norm = nullptr;       // [head_dim]
  const void* k_norm = nullptr;       // [head_dim]
  const float* sinks = nullptr;       // [heads]
  const float* conv = nullptr;        // [channels, conv]: the last of a row multiplies the current token
  const float* decay = nullptr;       // [v_heads], below 0: the state decays by exp(decay * softplus(a + dt_bias))
  const float* dt_bias = nullptr;     // [v_heads]
  const float* head_norm = nullptr;   // [v_dim], of each value head's output
  Weight output;                      // [hidden, spec.out_width()]
  const void* output_bias = nullptr;  // [hidden]
  const void* output_norm = nullptr;  // [hidden], of what attention adds
  const void* ffn_norm = nullptr;     // [hidden]
  // [2 * ffn, hidden], of the shared expert where there is one; none, as down, where there are experts alone.
  Weight gate_up;
  Weight down;                      // [hidden, ffn]
  const void* down_norm = nullptr;  // [hidden], of what the feed-forward part adds
  const void* scalar = nullptr;     // [1]: the residual stream is multiplied by it at the layer's end
  ExpertWeights experts;

  uint64_t experts_bytes() const {  // of all experts' matrices: stored_bytes()
    if (!spec.ffn.experts) return 0;
    return static_cast<uint64_t>(spec.ffn.experts->count) *
           (stored_bytes(experts.gate_up) + stored_bytes(experts.down));
  }
};

// The block that guesses the token after the next: fc of [embedding of the next token; the model's state after its last
// norm], each normalised, then a layer, a norm and the model's head.
struct MtpWeights {
  const void* embedding_norm = nullptr;  // [hidden]
  const void* hidden_norm = nullptr;     // [hidden]
  Weight fc;                             // [hidden, 2 * hidden]
  LayerWeights layer;
  const void* norm = nullptr;  // [hidden]; the model's last where the block has none
};

// What a matrix takes in the compute type, between others.
inline uint64_t unpacked_bytes(const Weight& weight, DType type) {
  return round_up(weight_bytes(plain_weight_type(type), weight.rows(), weight.cols), 256);
}

class Weights {
 public:
  // Checks names and shapes and reserves the whole, before a byte is read. `checkpoint` must outlive load().
  static Weights reserve(const Checkpoint& checkpoint, Device& device, const WeightStoreOptions& options);
  // False if `interrupt` was set on the way: then nothing is loaded. `progress` and `interrupt` may be null.
  bool load(const Checkpoint& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt);
  bool loaded() const { return store_.loaded(); }
  // The embeddings, of which a step reads a row for each token, may be in pinned host memory unless the head is tied to
  // them. Bytes of the device that they take and would leave; 0: they have to stay, or have left.
  uint64_t movable_bytes() const { return store_.movable_bytes(); }
  // REQUIRES: movable_bytes(); loaded; the device is idle.
  void move_embedding_to_host(Device& device);
  uint64_t staging_bytes() const { return store_.staging_bytes(); }  // as WeightStore
  const WeightDamage& damage() const { return store_.damage(); }

  const WeightStoreOptions& options() const { return store_.options(); }
  DType dtype() const { return store_.dtype(); }  // of vectors and of matrices that are not kept in blocks
  bool keeps_blocks() const { return store_.keeps_blocks(); }
  std::optional<WeightType> quantises_to() const { return store_.quantises_to(); }
  uint64_t bytes() const { return store_.bytes(); }
  std::vector<WeightTypeUse> types() const { return store_.types(); }
  uint64_t layers_bytes() const;  // of the layers' matrices but their experts': stored_bytes()
  const LayerWeights& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  const MtpWeights* mtp() const { return mtp_ ? &*mtp_ : nullptr; }  // null: the model has none
  const Weight& embedding() const { return embedding_; }             // [vocab, hidden]
  const void* final_norm() const { return final_norm_; }             // [hidden]
  const Weight& head() const { return head_; }    // [vocab, hidden]; the embedding where the head is tied
  float logit_cap() const { return logit_cap_; }  // ModelConfig::logit_cap

 private:
  WeightStore store_;
  std::vector<LayerWeights> layers_;
  std::optional<MtpWeights> mtp_;
  const void* final_norm_ = nullptr;
  Weight embedding_, head_;
  float logit_cap_ = 0;
};

}  // namespace headrace
