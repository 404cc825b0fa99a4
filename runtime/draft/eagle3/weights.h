// An EAGLE-3 head's weights on the device, in the shapes of its forward pass.
#pragma once

#include <array>

#include "runtime/draft/eagle3/checkpoint.h"
#include "runtime/draft/weights.h"
#include "runtime/model/weights.h"

namespace headrace {

// A decoder layer whose input norm is the embedding's and whose QKV matrix is [(heads + 2 kv_heads) * head_dim,
// 2 hidden], the embedding's half first, and what is around it. Null where the head has none. Loading may quantise
// matrices, but not fc and QKV, by which a whole prompt is multiplied as plain weights.
struct Eagle3Views : LayerWeights {
  // g = fc[0] . low + fc[1] . mid + fc[2] . high, so that a state can be projected when its layer is reached.
  std::array<Weight, 3> fc;                 // [hidden, target_hidden]
  std::array<const void*, 3> fc_norm = {};  // [target_hidden]
  const void* hidden_norm = nullptr;        // [hidden], of g
  const void* final_norm = nullptr;         // [hidden]
  Weight head;                              // [vocab, hidden]; null: the target's
  Weight embedding;                         // [target_vocab, hidden]; null: the target's
  const void* target_ids = nullptr;         // [vocab] of int32_t
};
using Eagle3Weights = DraftWeights<Eagle3Views>;

void place_views(const Eagle3Checkpoint& checkpoint, Eagle3Views* views, WeightPlaces* places);

}  // namespace headrace
