// Attention of a draft's rows over its cache: the rows that its window keeps, then each row's path through the rows of
// the round (runtime/draft/cache.h, kernels/attention/op.h). Shared by all drafts with a KV cache. A free function over
// views; asynchronous.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention/op.h"
#include "offload/device/stream.h"
#include "runtime/draft/buffers.h"
#include "runtime/draft/cache.h"

namespace headrace {

constexpr int64_t kDraftSegmentsPerLaunch = 16;

struct DraftAttentionParams {
  int64_t layer;
  AttentionShape shape;
  const void* q;           // [queries, heads, head_dim], strided
  const DraftRows& rows;   // the queries'
  AttentionState state;    // of `queries` rows
  AttentionState scratch;  // kDraftSegmentsPerLaunch times as many rows
  void* out;               // [queries, heads, head_dim], contiguous
};
// Adds segments to what tail_attention() left in prefix.state, kDraftSegmentsPerLaunch a launch; the last writes
// prefix.out. `prefix` has no segments.
void draft_prefix_attention(PrefixAttentionParams prefix, std::span<const KvSegment> segments, Stream& stream);
// `segments` is reused between calls.
void draft_attention(const DraftAttentionParams& params, const DraftCache& cache, std::vector<KvSegment>* segments,
                     Stream& stream);

}  // namespace headrace
