// Attention of a target pass (docs/design.md, section 8). Hybrid tree attention (LongSpec section 3.3) folds the states
// of the prefix, one per segment, from left to right, whatever tier a segment is in, and then the tail along each
// node's own path. Owns nothing. Thread: the executor's; all work is enqueued on its compute stream.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "runtime/kv/kv_streamer.h"
#include "runtime/session/buffers.h"
#include "runtime/session/sequence.h"

namespace headrace {

// A pass: the sequence that its rows belong to, and what they read of it.
struct PassScope {
  Sequence& sequence;
  KvStreamer* streamer = nullptr;  // null: all rows are resident, or the pass reads no full KV
  StepMode mode = StepMode::kFull;
  // A tree of pending tokens grows: the pass's own rows go to the pass rows given in the inputs, else from row 0 on.
  bool grows = false;
  int64_t pending_nodes = 0;     // nodes that are pending tokens, at the tree's beginning
  int64_t deepest_position = 0;  // the greatest of any node
};

class PassAttention {
 public:
  // All references must outlive this.
  PassAttention(const SessionLayout& layout, const SessionBuffers& buffers);

  // The attention of this layer, whose place is `at`: its queries are in pass.work.qkv, its own rows in the pass rows
  // of its group. A refresh also selects the blocks of the partial KV, if it has blocks, and gathers them from the
  // segments. A layer with a window reads its rows in every step.
  void run(const Pass& pass, const LayerWeights& layer, const StatePlace& at, const PassScope& scope) const;

 private:
  void full_prefix(PrefixAttentionParams params, const Pass& pass, const LayerWeights& layer, const StatePlace& at,
                   const PassScope& scope) const;
  void window_prefix(const PrefixAttentionParams& params, const Pass& pass, int64_t layer,
                     const PassScope& scope) const;
  void partial_prefix(PrefixAttentionParams params, const Pass& pass, int64_t layer, const PassScope& scope) const;
  int64_t segments_a_launch(const AttentionShape& shape) const;

  const SessionLayout& layout_;
  Stream& compute_;
  const SessionBuffers& buffers_;
};

// The queries of rows [rows - count, rows).
struct QueryRows {
  int64_t rows, count;
};
// Of the layer that `work` was last used for, or of a layer without attention none that mean something.
ScoringQueries scoring_queries(const SessionLayout& layout, const LayerSpec& layer, const LayerWork& work,
                               const QueryRows& rows);
// Shows the draft, if there is one, the queries of a layer with rows of its own.
void show_queries(Draft* draft, const StatePlace& at, const ScoringQueries& queries);

}  // namespace headrace
