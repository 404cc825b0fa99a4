#include "runtime/draft/longspec.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "offload/trace.h"
#include "runtime/draft/draft_attention.h"
#include "runtime/draft/longspec_work.h"
#include "runtime/kv_cache.h"

namespace headrace {

// ---- the layer ------------------------------------------------------------------------------------------------------

void LongSpecDraft::enter(const Entrance& e) {
  const LongSpecWeights::Views& w = weights_.views();
  embedding({.ids = e.tokens,
             .table = target_.weights->embedding(),
             .out = e.hidden,
             .type = weights_.dtype(),
             .rows = e.rows,
             .vocab = config_.vocab,
             .hidden = config_.hidden},
            *compute_);
  layer_->normalise(e.hidden, w.input_norm, e.normed, e.rows);
  layer_->multiply({.x = e.normed,
                    .w = w.qkv,
                    .bias = w.qkv_bias,
                    .out = e.qkv,
                    .rows = e.rows,
                    .n = sizes_.qkv_width(),
                    .k = config_.hidden,
                    .path = e.path});
}

// Every row sees all that the target has committed, and nothing of the tree: the target has not computed it. A query at
// the last committed position, with that row committed, sees just this.
void LongSpecDraft::attend_target(const DraftRows& rows) {
  const KvCache& cache = *target_cache_;
  const int64_t last = cache.shape().layers - 1, end = tail_begin(cache.rows() + cache.pending_rows() - 1);
  PrefixAttentionParams prefix{};
  prefix.shape = layer_->attention_shape(rows.count, sizes_.attended(), cache.shape());
  prefix.q = work_->layer.qkv;
  prefix.positions = work_->inputs.before;
  prefix.state = work_->layer.state;
  prefix.scratch = work_->layer.scratch;
  prefix.fresh = true;
  for (int64_t i = 0; i < segments_for(end); ++i) {
    if (prefix.segment_count == kDraftSegmentsPerLaunch) {
      prefix_attention(prefix, *compute_);
      prefix.segment_count = 0;
      prefix.fresh = false;
    }
    prefix.segments[prefix.segment_count++] = cache.resident_segment(last, i);
  }
  prefix_attention(prefix, *compute_);  // without any, it makes the states empty
  const KvCache::TailViews tail = cache.tail(last);
  tail_attention({.shape = prefix.shape,
                  .q = work_->layer.qkv,
                  .positions = work_->inputs.before,
                  .committed = work_->inputs.root_position,
                  .path = rows.path,
                  .ring_k = tail.ring_k,
                  .ring_v = tail.ring_v,
                  .pass_k = tail.pass_k,
                  .pass_v = tail.pass_v,
                  .state = work_->layer.state,
                  .out = work_->layer.attention,
                  .path_stride = rows.path_stride,
                  .ring_rows = kTailRingRows,
                  .pass_rows = 1},
                 *compute_);
}

void LongSpecDraft::finish_layer(const DraftRows& rows) {
  const LongSpecWeights::Views& w = weights_.views();
  const DraftLayerWork& work = work_->layer;
  void* const x = work_->hidden;
  const int64_t hidden = config_.hidden, attended = sizes_.attended(), count = rows.count;
  const auto add_attention = [&](const void* weight) {
    layer_->multiply(
        {.x = work.attention, .w = weight, .residual = x, .out = x, .rows = count, .n = hidden, .k = attended});
  };
  layer_->attend(rows, *cache_);
  add_attention(w.output);
  layer_->normalise(x, w.cross_norm, work.normed, count);
  layer_->multiply({.x = work.normed,
                    .w = w.cross_q,
                    .bias = w.cross_bias,
                    .out = work.qkv,
                    .rows = count,
                    .n = attended,
                    .k = hidden});
  layer_->rotate_queries(work.qkv, rows.positions, count);
  attend_target(rows);
  add_attention(w.cross_output);
  layer_->mlp({.norm = w.ffn_norm, .gate_up = w.gate_up, .down = w.down, .hidden = x, .rows = count});
  layer_->multiply({.x = x,
                    .w = target_.weights->head(),
                    .out = work.logits,
                    .rows = count,
                    .n = config_.vocab,
                    .k = hidden,
                    .out_f32 = true});
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// The root, and what the last verify accepted before it. On a GPU, where 64 rows cost what one does, there are always
// as many: the root is repeated, and the round is the same graph whatever was accepted.
LongSpecDraft::Round LongSpecDraft::upload_round(int32_t root, int64_t position, const TreeInputs& to) {
  const int64_t before = cache_->rows(), stable = static_cast<int64_t>(stable_tokens_.size()) + 1;
  const int64_t rows = device_.backend() == Backend::kCpu ? stable : stable_rows(options_.tree);
  CHECK(stable <= stable_rows(options_.tree) && before + stable == position + 1, "rows ", before, " + ", stable, " at ",
        position);
  const int64_t seen = target_cache_->rows() + target_cache_->pending_rows();
  CHECK(seen == position, "rows ", seen, " at ", position);
  for (int64_t i = 0; i < rows; ++i) {
    const bool accepted = i > 0 && i < stable;
    host_->tokens[i] = accepted ? stable_tokens_[static_cast<size_t>(i - 1)] : root;
    host_->positions[i] = static_cast<int32_t>(accepted ? before + i - 1 : position);
    host_->source[i] = static_cast<int32_t>((i + 1) % stable);
  }
  std::fill_n(host_->before, most_rows(), static_cast<int32_t>(position - 1));
  *host_->root_position = static_cast<int32_t>(position);
  *host_->committed = static_cast<int32_t>(position + 1);
  *host_->slot_shift = to.slot_shift;
  compute_->copy_small(work_->inputs.tokens, buffers_.inputs.data(), work_->inputs_bytes, Link::kHostToDevice);
  return {.stable = stable, .rows = rows, .position = position, .deepest = position + builder_->levels()};
}

// Tokens to work.hidden and work.qkv; their keys and values to the rows of the round.
void LongSpecDraft::embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row) {
  enter({.tokens = tokens,
         .hidden = work_->hidden,
         .normed = work_->layer.normed,
         .qkv = work_->layer.qkv,
         .rows = rows});
  layer_->rotate(work_->layer.qkv, positions, rows, cache_->pass_rows_from(0, pass_row));
}

void LongSpecDraft::grow_tree(const Round& round, const TreeRows& to) {
  const Inputs& in = work_->inputs;
  const TreeRoot root = {
      .token = in.tokens, .position = in.root_position, .committed = in.committed, .slot_shift = in.slot_shift};
  finish_layer({.tokens = in.tokens,
                .positions = in.positions,
                .path = in.source,
                .committed = in.committed,
                .count = 1,
                .path_stride = 1,
                .pass_row = 0,
                .deepest = round.deepest});
  builder_->grow(0, work_->layer.logits, in.positions, root, *compute_);
  for (int64_t level = 1; level < builder_->levels() && !builder_->stopped(*compute_); ++level) {
    const TreeFrontier& frontier = builder_->frontier();
    const int64_t rows = builder_->rows(level);
    embed(frontier.tokens, frontier.positions, rows, builder_->first_pass_row(level));
    finish_layer({.tokens = frontier.tokens,
                  .positions = frontier.positions,
                  .path = frontier.path,
                  .committed = in.committed,
                  .count = rows,
                  .path_stride = frontier.path_stride,
                  .pass_row = builder_->first_pass_row(level),
                  .deepest = round.deepest});
    builder_->grow(level, work_->layer.logits, frontier.positions, root, *compute_);
  }
  builder_->select(root, to, *compute_);
}

// Two graphs on a GPU, as Eagle3Draft has them. What the second reads changes with the rows that the window
// shows, and with the target's segments.
void LongSpecDraft::play_round(int32_t root, int64_t position, const TreeInputs& to) {
  const TraceSpan span(*compute_, "propose");
  const Inputs& in = work_->inputs;
  join_early_tokens();
  const Round round = upload_round(root, position, to);
  replay_.run(*compute_, {0, round.rows, 0, 0}, [&] { embed(in.tokens, in.positions, round.rows, 0); });
  cache_->append(in.source, round.stable, *compute_);
  if (builder_->stops_early()) return grow_tree(round, to.rows);
  const Replay::Key key = {builder_->key_of(to.rows), shape_.first_kept(cache_->rows()),
                           shape_.prefix_end(round.deepest), segments_for(tail_begin(round.position - 1))};
  replay_.run(*compute_, key, [&] { grow_tree(round, to.rows); });
}

void LongSpecDraft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  builder_->begin(limits);
  play_round(root, position, {.rows = builder_->own_rows()});
  builder_->bring(*compute_, tree);
}

ProposedTree LongSpecDraft::propose_into(int32_t root, int64_t position, const TreeLimits& limits,
                                         const TreeInputs& to) {
  builder_->begin(limits);
  if (builder_->stops_early()) return {};
  play_round(root, position, to);
  return builder_->proposed();
}

// After a refresh there may be more tokens than a round has room for: the first of them join the cache in rounds of
// their own.
void LongSpecDraft::join_early_tokens() {
  const Inputs& in = work_->inputs;
  const int64_t count = stable_rows(options_.tree);
  while (static_cast<int64_t>(stable_tokens_.size()) >= count) {
    const int64_t before = cache_->rows();
    for (int64_t i = 0; i < count; ++i) {
      host_->tokens[i] = stable_tokens_[static_cast<size_t>(i)];
      host_->positions[i] = static_cast<int32_t>(before + i);
      host_->source[i] = static_cast<int32_t>(i);
    }
    compute_->copy_small(in.tokens, buffers_.inputs.data(), work_->inputs_bytes, Link::kHostToDevice);
    replay_.run(*compute_, {0, count, 0, 0}, [&] { embed(in.tokens, in.positions, count, 0); });
    cache_->append(in.source, count, *compute_);
    stable_tokens_.erase(stable_tokens_.begin(), stable_tokens_.begin() + count);
    compute_->synchronize();  // the host side of the inputs is written again
  }
}

// The row of the first provisional token, the root of then, is right.
void LongSpecDraft::rewind(int64_t position) { cache_->rewind(std::min(position + 1, cache_->rows())); }

void LongSpecDraft::observe(const Tree& tree, const Acceptance& acceptance) {
  stable_tokens_.clear();
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    stable_tokens_.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
}

}  // namespace headrace
