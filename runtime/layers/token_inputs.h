// What a token itself adds to a layer's output, beside what attention and the feed-forward part make of it (Gemma 4 E2B
// and E4B): the rows of a table by token and layer, and a projection of the token's embedding. Free functions over
// views; nothing is owned and nothing waits.
#pragma once

#include <cstdint>

#include "runtime/layers/forward.h"
#include "runtime/model/weights.h"

namespace headrace {

// Layers [first, first + count) of the model, prepared at once: as many as pass.work has room for.
struct TokenLayers {
  const int32_t* ids;  // [pass.rows], device: the tokens of the pass's rows
  int64_t first, count;
};
// Fills pass.work.token_inputs. Nothing where the model's tokens add nothing.
void make_token_inputs(const Pass& pass, const ModelConfig& config, const Weights& weights, const TokenLayers& layers);
// hidden = (hidden + what the token adds) * the layer's scalar, which is its end. `index`: of the layer among those
// prepared, which are `count`. Nothing where the token adds nothing to the layer.
void add_token_input(const Pass& pass, const LayerWeights& layer, int64_t index, int64_t count, void* hidden);

}  // namespace headrace
