// Attention of a target pass (DESIGN section 8): hybrid tree attention is the prefix's states, one a segment, folded
// left to right wherever the segments lie, and the tail along each node's own path (LongSpec section 3.3).
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "offload/trace.h"
#include "runtime/session.h"

namespace headrace {
namespace {

constexpr int64_t kScoringNodes = 64;  // of a refresh, that blocks are chosen by

// Gathers segments, in order, for launches of the prefix kernel. What else is to see them as they pass, sees them.
class PrefixFold {
 public:
  using Seen = std::function<void(std::span<const KvSegment>)>;
  PrefixFold(const PrefixAttentionParams& params, int64_t per_launch, int64_t end_row, Seen seen, Stream& stream)
      : params_(params), per_launch_(per_launch), end_row_(end_row), seen_(std::move(seen)), stream_(stream) {}

  void add(const KvSegment& segment) {
    if (segment.position >= end_row_ || segment.rows <= 0) return;  // beyond every query's prefix
    params_.segments[params_.segment_count++] = segment;
    if (params_.segment_count == per_launch_) flush();
  }
  void flush() {
    if (params_.segment_count > 0) launch();
  }
  // All that is left. Without a prefix, the state becomes empty.
  void finish() {
    if (params_.segment_count > 0 || params_.fresh) launch();
  }

 private:
  void launch() {
    const TraceSpan span(stream_, {"prefix from row", params_.segments[0].position});
    prefix_attention(params_, stream_);
    if (seen_) seen_({params_.segments, static_cast<size_t>(params_.segment_count)});
    params_.segment_count = 0;
    params_.fresh = false;
  }

  PrefixAttentionParams params_;
  const int64_t per_launch_, end_row_;
  const Seen seen_;
  Stream& stream_;
};

}  // namespace

void Session::attend(const Pass& pass, int64_t layer) {
  PrefixAttentionParams params{};
  params.shape = attention_shape(pass);
  params.q = pass.work.qkv;
  params.state = step_.state;
  params.scratch = step_.scratch;
  params.fresh = true;
  if (mode_ == StepMode::kPartial) {
    params.positions = step_.inputs.slots;
    attend_partial(params, layer);
  } else {
    params.positions = pass.positions;
    attend_full(params, pass, layer);
  }
  attend_tail(pass, layer);
}

void Session::attend_full(const PrefixAttentionParams& params, const Pass& pass, int64_t layer) {
  PrefixFold::Seen seen;
  if (mode_ == StepMode::kRefresh) {
    // Of the tree, or, where the last query counts alone, up to its root: what comes after may not be right. Of a large
    // tree the first nodes, which are the likeliest.
    const bool last = options_.partial.reduce == BlockReduce::kLast;
    const int64_t end = last ? judged_again_ + 1 : std::min(pass.rows, judged_again_ + kScoringNodes);
    partial_->choose(layer, rows(), scoring_queries(pass.work, end, end - judged_again_), compute_);
    seen = [this, layer](std::span<const KvSegment> segments) { partial_->gather(layer, segments, compute_); };
  }
  PrefixFold fold(params, std::min(step_.scratch_rows / pass.rows, kMaxPrefixSegments), tail_begin(deepest_position_),
                  std::move(seen), compute_);
  const int64_t closed = cache_->closed_segments(), resident = std::min(closed, cache_->resident_segments(layer));
  for (int64_t i = 0; i < resident; ++i) fold.add(cache_->resident_segment(layer, i));
  if (streamer_ && layer < cache_->host_layers()) {
    fold.flush();  // they are not to wait for the link
    for (const Chunk& chunk : streamer_->movement().chunks) {
      const std::byte* const base = streamer_->next(compute_);
      for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) {
        fold.add(cache_->streamed_segment(base, chunk, i));
      }
      fold.flush();
      streamer_->done(compute_);
    }
  }
  fold.add(cache_->open_segment(layer));
  fold.finish();
}

void Session::attend_partial(const PrefixAttentionParams& params, int64_t layer) {
  PrefixFold fold(params, std::min(step_.scratch_rows / step_rows_, kMaxPrefixSegments),
                  std::numeric_limits<int64_t>::max(), {}, compute_);
  for (const KvSegment& segment : partial_->segments(layer)) fold.add(segment);
  fold.finish();
}

void Session::attend_tail(const Pass& pass, int64_t layer) {
  const TraceSpan span(compute_, "tail");
  const KvCache::TailViews tail = cache_->tail(layer);
  tail_attention({.shape = attention_shape(pass),
                  .q = pass.work.qkv,
                  .positions = pass.positions,
                  .committed = step_.inputs.committed,
                  .path = step_.inputs.path,
                  .ring_k = tail.ring_k,
                  .ring_v = tail.ring_v,
                  .pass_k = tail.pass_k,
                  .pass_v = tail.pass_v,
                  .state = step_.state,
                  .out = pass.work.attention,
                  .path_stride = layout_.path_stride(),
                  .ring_rows = kTailRingRows,
                  .pass_rows = layout_.pass_rows()},
                 compute_);
}

// The last `wanted` rows, or a few more: one query alone says little of what the next ones will look for.
ScoringQueries Session::scoring_queries(const LayerWork& work, int64_t rows, int64_t wanted) const {
  constexpr int64_t kFewest = 16;
  const int64_t count = std::min(rows, std::max(wanted, kFewest));
  const int64_t stride = (config_.heads + 2 * config_.kv_heads) * config_.head_dim;
  const uint64_t skipped = static_cast<uint64_t>((rows - count) * stride) * dtype_bytes(weights_.dtype());
  return {.q = static_cast<const std::byte*>(work.qkv) + skipped,
          .type = weights_.dtype(),
          .count = count,
          .heads = config_.heads,
          .stride = stride};
}

}  // namespace headrace
