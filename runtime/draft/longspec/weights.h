// A LongSpec layer's weights on the device, in the shapes of its forward pass.
#pragma once

#include "runtime/draft/longspec/checkpoint.h"
#include "runtime/draft/weights.h"

namespace headrace {

// Vectors are of the weights' type; matrices are [out, in].
struct LongSpecViews {
  const void* input_norm = nullptr;  // [hidden]
  Weight qkv;                        // [(heads + 2 kv_heads) * head_dim, hidden]
  const void* qkv_bias = nullptr;    // [(heads + 2 kv_heads) * head_dim]
  Weight output;                     // [hidden, heads * head_dim]
  const void* cross_norm = nullptr;  // [hidden]: after the self-attention
  Weight cross_q;                    // [heads * head_dim, hidden]
  const void* cross_bias = nullptr;  // [heads * head_dim]
  Weight cross_output;               // [hidden, heads * head_dim]
  const void* ffn_norm = nullptr;    // [hidden]: after the cross-attention
  Weight gate_up;                    // [2 * ffn, hidden]
  Weight down;                       // [hidden, ffn]
};
using LongSpecWeights = DraftWeights<LongSpecViews>;

void place_views(const LongSpecCheckpoint& checkpoint, LongSpecViews* views, WeightPlaces* places);

}  // namespace headrace
