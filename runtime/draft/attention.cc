#include "runtime/draft/attention.h"

namespace headrace {

void draft_prefix_attention(PrefixAttentionParams prefix, std::span<const KvSegment> segments, Stream& stream) {
  void* const out = prefix.out;
  prefix.out = nullptr;
  prefix.beside_tail = true;
  for (const KvSegment& segment : segments) {
    if (prefix.segment_count == kDraftSegmentsPerLaunch) {
      prefix_attention(prefix, stream);
      prefix.segment_count = 0;
      prefix.beside_tail = false;
    }
    prefix.segments[prefix.segment_count++] = segment;
  }
  prefix.out = out;
  prefix_attention(prefix, stream);
}

void draft_attention(const DraftAttentionParams& params, const DraftCache& cache, std::vector<KvSegment>* segments,
                     Stream& stream) {
  const DraftRows& rows = params.rows;
  const TailRows tail = cache.tail(params.layer);
  tail_attention({.shape = params.shape,
                  .q = params.q,
                  .positions = rows.positions,
                  .committed = rows.committed,
                  .path = rows.path,
                  .ring_k = tail.ring_k,
                  .ring_v = tail.ring_v,
                  .pass_k = tail.pass_k,
                  .pass_v = tail.pass_v,
                  .state = params.state,
                  .path_stride = rows.path_stride,
                  .ring_rows = cache.shape().ring_rows(),
                  .pass_rows = cache.shape().pass_rows},
                 stream);
  PrefixAttentionParams prefix{};
  prefix.shape = params.shape;
  prefix.q = params.q;
  prefix.positions = rows.positions;
  prefix.state = params.state;
  prefix.scratch = params.scratch;
  prefix.out = params.out;
  cache.prefix(params.layer, rows.deepest, segments);
  draft_prefix_attention(prefix, *segments, stream);
}

}  // namespace headrace
