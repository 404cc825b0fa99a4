// Attention of a target pass (docs/design.md, section 8). Hybrid tree attention (LongSpec section 3.3) folds the states
// of the prefix, one per segment, from left to right, whatever tier a segment is in, and then the tail along each
// node's own path. Owns nothing. Thread: the session's; all work is enqueued on its compute stream.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/kv_streamer.h"
#include "runtime/kv/partial_rows.h"
#include "runtime/kv/recurrent_state.h"
#include "runtime/kv/state_snapshots.h"
#include "runtime/session/buffers.h"

namespace headrace {

// What a session's passes read of earlier tokens.
struct PassKv {
  KvCache& cache;
  KvStreamer* streamer = nullptr;       // null if all rows are resident
  PartialRows* partial = nullptr;       // null if every step reads the full KV
  RecurrentState* recurrent = nullptr;  // null if all layers have rows
  StateSnapshots* snapshots = nullptr;  // null if no prompt resumes from this one
};

inline DeltaState delta_state(const RecurrentState& states, int64_t place) {
  return {.state = states.state(place),
          .conv = states.conv(place),
          .stored = states.stored(place),
          .pass_rows = states.pass_rows()};
}

// The mode of a pass, and the rows that it reads.
struct PassScope {
  StepMode mode = StepMode::kFull;
  // A tree of pending tokens grows: the pass's own rows go to the pass rows given in the inputs, else from row 0 on.
  bool grows = false;
  int64_t pending_nodes = 0;     // nodes that are pending tokens, at the tree's beginning
  int64_t deepest_position = 0;  // the greatest of any node
};

class PassAttention {
 public:
  PassAttention(const SessionPlan& plan, const SessionBuffers& buffers, const PassKv& kv);

  // One layer of the pass, the place of which among those with rows is `layer`: its queries are in pass.work.qkv, its
  // own rows in the cache's pass rows. A refresh also selects the blocks of the partial KV, if it has blocks, and
  // gathers them from the segments.
  void run(const Pass& pass, int64_t layer, const PassScope& scope);

 private:
  void full_prefix(PrefixAttentionParams params, const Pass& pass, int64_t layer, const PassScope& scope);
  void partial_prefix(PrefixAttentionParams params, const Pass& pass, int64_t layer, const PassScope& scope);
  int64_t segments_a_launch(const AttentionShape& shape) const;

  const SessionLayout& layout_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  const PassKv kv_;
};

// The queries of rows [rows - count, rows) of the layer that `work` was last used for.
ScoringQueries scoring_queries(const SessionLayout& layout, const LayerWork& work, int64_t rows, int64_t count);

}  // namespace headrace
