// A LongSpec layer's weights on the device, in the shapes of its forward pass.
#pragma once

#include "runtime/draft/longspec/checkpoint.h"
#include "runtime/draft/weights.h"

namespace headrace {

// All in the weights' type; [out, in], row-major.
struct LongSpecViews {
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
using LongSpecWeights = DraftWeights<LongSpecViews>;

void place_views(const LongSpecCheckpoint& checkpoint, LongSpecViews* views, WeightPlaces* places);

}  // namespace headrace
