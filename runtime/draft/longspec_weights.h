// A LongSpec layer's weights on the device, in the shapes that its forward pass multiplies with. Owns one device
// buffer; the views point into it. Immutable once loaded.
#pragma once

#include <atomic>

#include "runtime/draft/longspec_checkpoint.h"
#include "runtime/model/weight_store.h"

namespace headrace {

class LongSpecWeights {
 public:
  // All of the weights' type; [out, in], row-major.
  struct Views {
    const void* input_norm = nullptr;    // [hidden]
    const void* qkv = nullptr;           // [(heads + 2 kv_heads) * head_dim, hidden]
    const void* qkv_bias = nullptr;      // [(heads + 2 kv_heads) * head_dim]
    const void* output = nullptr;        // [hidden, heads * head_dim]
    const void* cross_norm = nullptr;    // [hidden]: after the self-attention
    const void* cross_q = nullptr;       // [heads * head_dim, hidden]
    const void* cross_bias = nullptr;    // [heads * head_dim]
    const void* cross_output = nullptr;  // [hidden, heads * head_dim]
    const void* ffn_norm = nullptr;      // [hidden]: after the cross-attention
    const void* gate_up = nullptr;       // [2 * ffn, hidden]
    const void* down = nullptr;          // [hidden, ffn]
  };

  // Reserves the whole, before a byte is read. `checkpoint` must outlive load().
  static LongSpecWeights reserve(const LongSpecCheckpoint& checkpoint, Device& device, DType dtype);
  // As Weights::load.
  bool load(const LongSpecCheckpoint& checkpoint, Device& device, Progress* progress,
            const std::atomic<bool>* interrupt);
  bool loaded() const { return store_.loaded(); }

  DType dtype() const { return store_.dtype(); }
  uint64_t bytes() const { return store_.bytes(); }
  uint64_t staging_bytes() const { return store_.staging_bytes(); }
  const Views& views() const { return views_; }

 private:
  WeightStore store_;
  Views views_;
};

}  // namespace headrace
