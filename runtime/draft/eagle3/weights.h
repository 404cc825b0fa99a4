// An EAGLE-3 head's weights on the device, in the shapes of its forward pass.
#pragma once

#include <array>

#include "runtime/draft/eagle3/checkpoint.h"
#include "runtime/draft/weights.h"

namespace headrace {

// All in the weights' type; [out, in], row-major. Null if the head has none.
struct Eagle3Views {
  // g = fc[0] . low + fc[1] . mid + fc[2] . high: a state is projected when prefill reaches its layer.
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
  const void* target_ids = nullptr;         // [vocab] of int32_t
};
using Eagle3Weights = DraftWeights<Eagle3Views>;

void place_views(const Eagle3Checkpoint& checkpoint, Eagle3Views* views, WeightPlaces* places);

}  // namespace headrace
