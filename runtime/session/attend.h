// Attention of a target pass (docs/design.md, section 8): hybrid tree attention is the prefix's states, one a segment,
// folded left to right wherever the segments are, and the tail along each node's own path (LongSpec section 3.3). Owns
// nothing. Thread: the session's; all work is enqueued on its compute stream.
#pragma once

#include <cstdint>

#include "kernels/attention/op.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/kv/kv_streamer.h"
#include "runtime/kv/partial_kv.h"
#include "runtime/session/buffers.h"

namespace headrace {

// The rows that a session's passes see.
struct KvRooms {
  KvCache& cache;
  KvStreamer* streamer = nullptr;  // null where all is resident
  PartialKv* partial = nullptr;    // null where the run never outgrows its budget
};

// What a pass sees of them.
struct PassScope {
  StepMode mode = StepMode::kFull;
  int64_t judged_again = 0;      // of its nodes, pending tokens
  int64_t deepest_position = 0;  // of its nodes
};

class PassAttention {
 public:
  PassAttention(const SessionPlan& plan, const SessionBuffers& buffers, const KvRooms& kv);

  // One layer of the pass, whose queries are in pass.work.qkv and whose own rows are in the cache's pass rows. A
  // refresh chooses the partial KV's blocks, and gathers them as the segments pass.
  void run(const Pass& pass, int64_t layer, const PassScope& scope);

 private:
  void full_prefix(const PrefixAttentionParams& params, const Pass& pass, int64_t layer, const PassScope& scope);
  void partial_prefix(const PrefixAttentionParams& params, const Pass& pass, int64_t layer);
  void tail(const Pass& pass, int64_t layer);
  int64_t segments_a_launch(const Pass& pass) const;

  const SessionLayout& layout_;
  Stream& compute_;
  const SessionBuffers& buffers_;
  const KvRooms kv_;
};

// The last `count` of the first `rows` rows' queries.
ScoringQueries scoring_queries(const SessionLayout& layout, const LayerWork& work, int64_t rows, int64_t count);

}  // namespace headrace
