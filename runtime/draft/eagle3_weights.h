// An EAGLE-3 head's weights on the device, in the shapes that its forward pass multiplies with. Owns one device buffer;
// the views point into it. Immutable once loaded.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "runtime/draft/eagle3_checkpoint.h"
#include "runtime/model/weight_store.h"

namespace headrace {

class Eagle3Weights {
 public:
  // All of the weights' type; [out, in], row-major. Null where the head has none.
  struct Views {
    // g = fc[0] . low + fc[1] . mid + fc[2] . high, so that a state can be projected when its layer is reached.
    std::array<const void*, 3> fc = {};       // [hidden, target_hidden]
    std::array<const void*, 3> fc_norm = {};  // [target_hidden]
    const void* input_norm = nullptr;         // [hidden], of the embedding
    const void* hidden_norm = nullptr;        // [hidden], of g
    const void* qkv = nullptr;                // [(heads + 2 kv_heads) * head_dim, 2 hidden]: embedding half first
    const void* output = nullptr;             // [hidden, heads * head_dim]
    const void* ffn_norm = nullptr;           // [hidden]
    const void* gate_up = nullptr;            // [2 * ffn, hidden]
    const void* down = nullptr;               // [hidden, ffn]
    const void* final_norm = nullptr;         // [hidden]
    const void* head = nullptr;               // [vocab, hidden]; null: the target's
    const void* embedding = nullptr;          // [target_vocab, hidden]; null: the target's
    const int32_t* target_ids = nullptr;      // [vocab]
  };

  // Checks names and shapes and reserves the whole, before a byte is read. `checkpoint` must outlive load().
  static Eagle3Weights reserve(const Eagle3Checkpoint& checkpoint, Device& device, DType dtype);
  // As Weights::load.
  bool load(const Eagle3Checkpoint& checkpoint, Device& device, Progress* progress, const std::atomic<bool>* interrupt);
  bool loaded() const { return store_.loaded(); }
  uint64_t staging_bytes() const { return store_.staging_bytes(); }

  DType dtype() const { return store_.dtype(); }
  uint64_t bytes() const { return store_.bytes(); }
  const Views& views() const { return views_; }

 private:
  WeightStore store_;
  Views views_;
};

}  // namespace headrace
