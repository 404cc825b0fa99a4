#include "runtime/session/attend.h"

#include <algorithm>
#include <utility>

#include "runtime/layers/attention.h"

namespace headrace {
namespace {

constexpr int64_t kScoringNodes = 64;  // nodes of a refresh whose queries choose the blocks

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

PassAttention::PassAttention(const SessionLayout& layout, const SessionBuffers& buffers)
    : layout_(layout), compute_(layout.compute()), buffers_(buffers) {}

void PassAttention::run(const Pass& pass, const LayerWeights& layer, const StatePlace& at,
                        const PassScope& scope) const {
  const StepWork& step = buffers_.step();
  const KvCache& cache = scope.sequence.cache();
  const bool window = at.group == StateGroup::kWindow;
  const RecentRows& recent = window ? scope.sequence.windows()->recent() : cache.recent();
  const RecentRows::Views tail = recent.views(at.place);
  const bool partial = scope.mode == StepMode::kPartial && !window && !scope.sequence.partial()->exact();
  PrefixAttentionParams params =
      attend_tail({.shape = attention_shape(pass, layer.spec.attention()),
                   .q = pass.work.qkv,
                   .positions = pass.positions,
                   .committed = step.inputs.committed,
                   .path = step.inputs.path,
                   .path_stride = layout_.path_stride(),
                   .state = step.state,
                   .scratch = step.scratch,
                   .first = partial ? scope.sequence.partial()->tail_first() : nullptr,
                   .sinks = layer.sinks},
                  {tail.ring_k, tail.ring_v, tail.pass_k, tail.pass_v, tail.ring_rows, layout_.pass_rows()}, compute_);
  params.beside_tail = compute_.tracing().trace == nullptr;  // a trace shows the time of each
  if (partial) {
    params.positions = step.inputs.slots;
    return partial_prefix(params, pass, at.place, scope);
  }
  params.shape.k_type = cache.shape().k_type;
  params.shape.v_type = cache.shape().v_type;
  if (window) return window_prefix(params, pass, at.place, scope);
  full_prefix(params, pass, layer, at, scope);
}

// The same rows in each step, whatever its mode.
void PassAttention::window_prefix(const PrefixAttentionParams& params, const Pass& pass, int64_t layer,
                                  const PassScope& scope) const {
  PrefixFold fold(params, {.segments = segments_a_launch(params.shape), .in_parts = false}, compute_);
  for (const KvSegment& slot : scope.sequence.windows()->slots(layer, tail_begin(scope.deepest_position))) {
    fold.add(slot);
  }
  fold.finish(pass.work.attention);
}

// A layer without rows of its own reads what a partial step reads of the layer that has them: the blocks that this
// layer's queries chose. No layer that others read streams (PlanInput::last_layer_resident).
void PassAttention::full_prefix(PrefixAttentionParams params, const Pass& pass, const LayerWeights& weights,
                                const StatePlace& at, const PassScope& scope) const {
  const int64_t layer = at.place;
  PrefixLaunches::Seen seen;
  const KvCache& cache = scope.sequence.cache();
  PartialRows* const partial = scope.sequence.partial();
  int64_t end_row = tail_begin(scope.deepest_position);
  if (scope.mode == StepMode::kRefresh && partial->selects() && at.own) {
    const PartialOptions& options = layout_.options().partial;
    const ScoringNodes nodes(options, pass.rows, scope.pending_nodes);
    params.beside_tail = false;  // other work follows the tail
    partial->choose(layer, cache.rows(), cache.pending_rows(),
                    scoring_queries(layout_, weights.spec, pass.work, {.rows = nodes.end, .count = nodes.count}),
                    compute_);
    // Chosen blocks may be in a segment that is beyond every query's prefix.
    end_row = std::max(end_row, options.shape.window_begin(cache.rows(), cache.pending_rows()));
    seen = [this, partial, layer](std::span<const KvSegment> segments) { partial->gather(layer, segments, compute_); };
  }
  PrefixFold fold(params, {.segments = segments_a_launch(params.shape), .end_row = end_row, .seen = std::move(seen)},
                  compute_);
  const int64_t sealed = cache.sealed_segments(), resident = std::min(sealed, cache.resident_segments(layer));
  for (int64_t i = 0; i < resident; ++i) fold.add(cache.resident_segment(layer, i));
  KvStreamer* const streamer = scope.streamer;
  if (streamer != nullptr && layer < cache.host_layers()) {
    CHECK(at.own);
    fold.flush();  // resident segments need not wait for the link
    fold.follow();
    for (const Chunk& chunk : streamer->schedule().chunks) {
      streamer->take(partial != nullptr ? partial->copy(layer) : std::span<const KvSegment>(), compute_);
      for (int64_t i = chunk.first_segment; i < chunk.last_segment; ++i) fold.add(streamer->segment(i));
      fold.flush();
      streamer->done(compute_);
    }
  }
  fold.add(cache.active_segment(layer));
  fold.finish(pass.work.attention);
}

void PassAttention::partial_prefix(PrefixAttentionParams params, const Pass& pass, int64_t layer,
                                   const PassScope& scope) const {
  const PartialRows& partial = *scope.sequence.partial();
  params.shape.k_type = partial.k_type();
  params.shape.v_type = partial.v_type();
  params.rotated_q = buffers_.step().rotated_q;
  PrefixFold fold(params, {.segments = segments_a_launch(params.shape)}, compute_);
  for (const KvSegment& segment : partial.segments(layer, scope.deepest_position)) fold.add(segment);
  fold.finish(pass.work.attention);
}

int64_t PassAttention::segments_a_launch(const AttentionShape& shape) const {
  return std::min(buffers_.step().scratch_rows / shape.queries, kMaxPrefixParts);
}

ScoringQueries scoring_queries(const SessionLayout& layout, const LayerSpec& layer, const LayerWork& work,
                               const QueryRows& rows) {
  const AttentionSpec& attention = layer.has_attention() ? layer.attention() : layout.config().attention();
  const DType type = layout.weights().dtype();
  const int64_t stride = attention.qkv_width();
  const uint64_t skipped = static_cast<uint64_t>((rows.rows - rows.count) * stride) * dtype_bytes(type);
  return {.q = static_cast<const std::byte*>(work.qkv) + skipped,
          .type = type,
          .count = rows.count,
          .heads = attention.heads,
          .stride = stride};
}

void show_queries(Draft* draft, const StatePlace& at, const ScoringQueries& queries) {
  if (draft == nullptr || at.group != StateGroup::kRows || !at.own) return;
  draft->pass_queries(
      {.layer = at.place, .q = queries.q, .type = queries.type, .rows = queries.count, .stride = queries.stride});
}

}  // namespace headrace
