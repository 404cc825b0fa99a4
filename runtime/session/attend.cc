#include "runtime/session/attend.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "cache/attention_parts.h"
#include "offload/device/trace.h"

namespace headrace {
namespace {

constexpr int64_t kScoringNodes = 64;  // nodes of a refresh whose queries choose the blocks

// The rows of a segment from `first` on, at most `rows`.
KvSegment part_of(const KvSegment& segment, int32_t first, int32_t rows, const AttentionShape& shape) {
  KvSegment part = segment;
  part.position += first;
  part.rows = std::min(rows, segment.rows - first);
  if (low_bit(shape.k_type) || low_bit(shape.v_type)) {
    part.first_row += first;
    return part;
  }
  const auto at = [&](const void* plane, DType type) {
    return static_cast<const std::byte*>(plane) + row_bytes(type, shape.head_dim) * static_cast<uint64_t>(first);
  };
  part.k = at(segment.k, shape.k_type);
  part.v = at(segment.v, shape.v_type);
  return part;
}

// Collects segments in order for launches of the prefix kernel, and passes each batch to `seen` as well.
class PrefixFold {
 public:
  using Seen = std::function<void(std::span<const KvSegment>)>;
  PrefixFold(const PrefixAttentionParams& params, int64_t per_launch, int64_t end_row, Seen seen, Stream& stream)
      : params_(params), per_launch_(per_launch), end_row_(end_row), seen_(std::move(seen)), stream_(stream) {}

  void add(const KvSegment& segment) {
    if (segment.position >= end_row_ || segment.rows <= 0) return;  // beyond every query's prefix
    // All of its parts, also those beyond, so that the number of segments says how many launches there are.
    const auto rows =
        static_cast<int32_t>(attention_part_rows(segment.position, params_.shape.k_type, params_.shape.v_type));
    for (int32_t first = 0; first < segment.rows; first += rows) {
      if (params_.segment_count == per_launch_) launch();
      params_.segments[params_.segment_count++] = part_of(segment, first, rows, params_.shape);
    }
    if (seen_) whole_.push_back(segment);
  }
  void flush() {
    if (params_.segment_count > 0) launch();
  }
  // Call if other work is enqueued between the tail and the segments.
  void follow() { params_.beside_tail = false; }
  // Launches with the remaining segments, even if there are none, and writes `out`.
  void finish(void* out) {
    params_.out = out;
    launch();
  }

 private:
  void launch() {
    const bool any = params_.segment_count > 0;
    const TraceSpan span(stream_, any ? TraceName("prefix from row", params_.segments[0].position) : "attention's end");
    prefix_attention(params_, stream_);
    if (!whole_.empty()) seen_(whole_);
    whole_.clear();
    params_.segment_count = 0;
    params_.beside_tail = false;
  }

  PrefixAttentionParams params_;
  const int64_t per_launch_, end_row_;
  const Seen seen_;
  std::vector<KvSegment> whole_;  // the segments of this launch, for seen_
  Stream& stream_;
};

// The nodes of a refresh whose queries select blocks: `count` before `end`. Those of the tree's first nodes, which are
// the likeliest of a large tree, and if these are few those before it. With kTree, all of the tree's nodes. If only the
// last query counts, it is the root's: the nodes after it may be wrong.
struct ScoringNodes {
  int64_t end, count;
  ScoringNodes(const PartialOptions& options, int64_t nodes, int64_t first) {
    const bool tree = options.queries == BlockQueries::kTree;
    end = tree ? nodes : std::min(nodes, first + kScoringNodes);
    if (options.reduce == BlockReduce::kLast) end = first + 1;
    count = tree ? end - first : std::min(end, std::max(end - first, kScoringRows));
  }
};

}  // namespace

PassAttention::PassAttention(const SessionPlan& plan, const SessionBuffers& buffers, const PassKv& kv)
    : layout_(plan.layout), compute_(layout_.compute()), buffers_(buffers), kv_(kv) {}

void PassAttention::run(const Pass& pass, int64_t layer, const PassScope& scope) {
  PrefixAttentionParams params{};
  params.shape = attention_shape(pass, layout_.config().attention());
  params.q = pass.work.qkv;
  params.state = buffers_.step().state;
  params.scratch = buffers_.step().scratch;
  tail(pass, layer, scope.mode == StepMode::kPartial ? kv_.partial->tail_first() : nullptr);
  params.beside_tail = compute_.tracing().trace == nullptr;  // a trace shows the time of each
  if (scope.mode == StepMode::kPartial) {
    params.positions = buffers_.step().inputs.slots;
    partial_prefix(params, pass, layer, scope);
  } else {
    params.positions = pass.positions;
    params.shape.k_type = kv_.cache.shape().k_type;
    params.shape.v_type = kv_.cache.shape().v_type;
    full_prefix(params, pass, layer, scope);
  }
}

void PassAttention::full_prefix(PrefixAttentionParams params, const Pass& pass, int64_t layer, const PassScope& scope) {
  PrefixFold::Seen seen;
  KvCache& cache = kv_.cache;
  PartialRows* const partial = kv_.partial;
  int64_t end_row = tail_begin(scope.deepest_position);
  if (scope.mode == StepMode::kRefresh && partial->selects()) {
    const PartialOptions& options = layout_.options().partial;
    const ScoringNodes nodes(options, pass.rows, scope.pending_nodes);
    params.beside_tail = false;  // other work follows the tail
    partial->choose(layer, cache.rows(), cache.pending_rows(),
                    scoring_queries(layout_, pass.work, nodes.end, nodes.count), compute_);
    // Chosen blocks may be in a segment that is beyond every query's prefix.
    end_row = std::max(end_row, options.shape.window_begin(cache.rows(), cache.pending_rows()));
    seen = [this, partial, layer](std::span<const KvSegment> segments) { partial->gather(layer, segments, compute_); };
  }
  PrefixFold fold(params, segments_a_launch(params.shape), end_row, std::move(seen), compute_);
  const int64_t sealed = cache.sealed_segments(), resident = std::min(sealed, cache.resident_segments(layer));
  for (int64_t i = 0; i < resident; ++i) fold.add(cache.resident_segment(layer, i));
  KvStreamer* const streamer = kv_.streamer;
  if (streamer != nullptr && layer < cache.host_layers()) {
    fold.flush();  // resident segments need not wait for the link
    fold.follow();
    for (const Chunk& chunk : streamer->schedule().chunks) {
      streamer->next(partial != nullptr ? partial->copy(layer) : std::span<const KvSegment>(), compute_);
      for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) fold.add(streamer->segment(i));
      fold.flush();
      streamer->done(compute_);
    }
  }
  fold.add(cache.active_segment(layer));
  fold.finish(pass.work.attention);
}

void PassAttention::partial_prefix(PrefixAttentionParams params, const Pass& pass, int64_t layer,
                                   const PassScope& scope) {
  params.shape.k_type = kv_.partial->k_type();
  params.shape.v_type = kv_.partial->v_type();
  params.rotated_q = buffers_.step().rotated_q;
  PrefixFold fold(params, segments_a_launch(params.shape), std::numeric_limits<int64_t>::max(), {}, compute_);
  for (const KvSegment& segment : kv_.partial->segments(layer, scope.deepest_position)) fold.add(segment);
  fold.finish(pass.work.attention);
}

int64_t PassAttention::segments_a_launch(const AttentionShape& shape) const {
  return std::min(buffers_.step().scratch_rows / shape.queries, most_prefix_segments(shape.head_dim));
}

void PassAttention::tail(const Pass& pass, int64_t layer, const int32_t* first) {
  const TraceSpan span(compute_, "tail");
  const KvCache::TailViews rows = kv_.cache.tail(layer);
  const StepWork& step = buffers_.step();
  tail_attention({.shape = attention_shape(pass, layout_.config().attention()),
                  .q = pass.work.qkv,
                  .positions = pass.positions,
                  .committed = step.inputs.committed,
                  .path = step.inputs.path,
                  .ring_k = rows.ring_k,
                  .ring_v = rows.ring_v,
                  .pass_k = rows.pass_k,
                  .pass_v = rows.pass_v,
                  .state = step.state,
                  .path_stride = layout_.path_stride(),
                  .ring_rows = kTailRingRows,
                  .pass_rows = layout_.pass_rows(),
                  .first = first},
                 compute_);
}

ScoringQueries scoring_queries(const SessionLayout& layout, const LayerWork& work, int64_t rows, int64_t count) {
  const AttentionSpec& attention = layout.config().attention();
  const DType type = layout.weights().dtype();
  const int64_t stride = attention.qkv_width();
  const uint64_t skipped = static_cast<uint64_t>((rows - count) * stride) * dtype_bytes(type);
  return {.q = static_cast<const std::byte*>(work.qkv) + skipped,
          .type = type,
          .count = count,
          .heads = attention.heads,
          .stride = stride};
}

}  // namespace headrace
