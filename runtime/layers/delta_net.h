// A layer with a recurrent state (Gated DeltaNet) between its first product and its output product, for passes over
// trees and for prefill (kernels/recurrence/op.h). Views; owns nothing and nothing waits.
#pragma once

#include <cstdint>

#include "kernels/recurrence/op.h"
#include "runtime/layers/forward.h"

namespace headrace {

DeltaShape delta_shape(const DeltaNetSpec& spec);

// What the ops need beside the pass's buffers, for calls of up to `rows` rows.
struct DeltaWork {
  float *q = nullptr, *v = nullptr, *beta = nullptr, *o = nullptr;
  // Only of prefill: of a pass these are in its stored rows.
  float *k = nullptr, *g = nullptr;
  void* scratch = nullptr;

  static DeltaWork of_pass(const DeltaShape& shape, int64_t rows, BumpAllocator& allocator);
  static DeltaWork of_prefill(const DeltaShape& shape, int64_t rows, BumpAllocator& allocator);
};

// The states of one layer, at the same token, what the last passes keep of their rows (DeltaRows), and, of a pass, a
// state at the end of a path of such rows.
struct DeltaState {
  float* state;  // [v_heads, k_dim, v_dim]
  void* conv;    // [3, channels], of the weights' type
  DeltaRows stored;
  int64_t pass_rows;
  DeltaAhead ahead = {};
};

// work.qkv -> work.attention, of a pass whose rows are in a tree; the states stay as they are.
void delta_pass(const Pass& pass, const LayerWeights& layer, const DeltaState& at, const DeltaPath& path,
                const DeltaWork& work);
// The same of rows that follow one another and the states' token; the states move behind them. REQUIRES: as
// delta_chunks().
void delta_prefill(const Pass& pass, const LayerWeights& layer, const DeltaState& at, const DeltaWork& work);

}  // namespace headrace
