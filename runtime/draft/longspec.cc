#include "runtime/draft/longspec.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/product.h"
#include "offload/trace.h"
#include "runtime/draft/draft_attention.h"
#include "runtime/draft/longspec_work.h"
#include "runtime/kv_cache.h"

namespace headrace {
namespace {

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

}  // namespace

// ---- the layer ------------------------------------------------------------------------------------------------------

void LongSpecDraft::multiply(const Multiply& m) {
  product({.x = m.x,
           .w = m.w,
           .bias = m.bias,
           .residual = m.residual,
           .out = m.out,
           .type = weights_.dtype(),
           .out_type = m.out_f32 ? DType::kF32 : weights_.dtype(),
           .rows = m.rows,
           .n = m.n,
           .k = m.k,
           .path = m.path},
          *compute_);
}

void LongSpecDraft::normalise(const void* x, const void* weight, void* out, int64_t rows) {
  rms_norm({.x = x,
            .weight = weight,
            .out = out,
            .type = weights_.dtype(),
            .rows = rows,
            .groups = 1,
            .cols = config_.hidden,
            .x_stride = config_.hidden,
            .out_stride = config_.hidden,
            .eps = static_cast<float>(config_.rms_eps)},
           *compute_);
}

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
  normalise(e.hidden, w.input_norm, e.normed, e.rows);
  multiply({.x = e.normed,
            .w = w.qkv,
            .bias = w.qkv_bias,
            .residual = nullptr,
            .out = e.qkv,
            .rows = e.rows,
            .n = qkv_width(),
            .k = config_.hidden,
            .path = e.path});
}

// q in place; K and V of the self-attention, rounded to the cache's types, to `to`.
void LongSpecDraft::rotate(void* qkv, const int32_t* positions, int64_t rows, const KvRows& to) {
  std::byte* const q = static_cast<std::byte*>(qkv);
  const uint64_t k_offset = u(attended()) * type_bytes();
  const uint64_t k_bytes = u(config_.kv_heads * config_.head_dim) * type_bytes();
  rope({.q = q,
        .k = q + k_offset,
        .v = q + k_offset + k_bytes,
        .positions = positions,
        .cos_sin = work_->cos_sin,
        .k_out = to.k,
        .v_out = to.v,
        .type = weights_.dtype(),
        .k_type = shape_.rows.k_type,
        .v_type = shape_.rows.v_type,
        .rows = rows,
        .heads = config_.heads,
        .kv_heads = config_.kv_heads,
        .head_dim = config_.head_dim,
        .qkv_stride = qkv_width(),
        .table_rows = options_.context_tokens,
        .out_row_stride = to.row_stride,
        .out_head_stride = to.head_stride},
       *compute_);
}

AttentionShape LongSpecDraft::attention_shape(int64_t rows, int64_t q_stride, const RowShape& kv) const {
  return {.queries = rows,
          .heads = config_.heads,
          .kv_heads = config_.kv_heads,
          .head_dim = config_.head_dim,
          .q_stride = q_stride,
          .type = weights_.dtype(),
          .k_type = kv.k_type,
          .v_type = kv.v_type,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))};
}

void LongSpecDraft::attend_self(const Rows& rows) {
  draft_attention({.layer = 0,
                   .shape = attention_shape(rows.count, qkv_width(), shape_.rows),
                   .q = work_->qkv,
                   .positions = rows.positions,
                   .committed = work_->inputs.committed,
                   .path = rows.path,
                   .path_stride = rows.path_stride,
                   .deepest = rows.deepest,
                   .state = work_->state,
                   .scratch = work_->scratch,
                   .out = work_->attention},
                  *cache_, &segments_, *compute_);
}

// Every row sees all that the target has committed, and nothing of the tree: the target has not computed it. A query at
// the last committed position, with that row committed, sees just this.
void LongSpecDraft::attend_target(const Rows& rows) {
  const KvCache& cache = *target_cache_;
  const int64_t last = cache.shape().layers - 1, end = tail_begin(cache.rows() - 1);
  PrefixAttentionParams prefix{};
  prefix.shape = attention_shape(rows.count, attended(), cache.shape());
  prefix.q = work_->qkv;
  prefix.positions = work_->inputs.before;
  prefix.state = work_->state;
  prefix.scratch = work_->scratch;
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
                  .q = work_->qkv,
                  .positions = work_->inputs.before,
                  .committed = work_->inputs.root_position,
                  .path = rows.path,
                  .ring_k = tail.ring_k,
                  .ring_v = tail.ring_v,
                  .pass_k = tail.pass_k,
                  .pass_v = tail.pass_v,
                  .state = work_->state,
                  .out = work_->attention,
                  .path_stride = rows.path_stride,
                  .ring_rows = kTailRingRows,
                  .pass_rows = 1},
                 *compute_);
}

void LongSpecDraft::finish_layer(const Rows& rows) {
  const LongSpecWeights::Views& w = weights_.views();
  const Work& work = *work_;
  const int64_t hidden = config_.hidden, count = rows.count;
  const auto multiply_rows = [&](const void* x, const void* weight, const void* bias, bool residual, void* out,
                                 int64_t n, int64_t k) {
    multiply({.x = x,
              .w = weight,
              .bias = bias,
              .residual = residual ? work.hidden : nullptr,
              .out = out,
              .rows = count,
              .n = n,
              .k = k});
  };
  attend_self(rows);
  multiply_rows(work.attention, w.output, nullptr, true, work.hidden, hidden, attended());
  normalise(work.hidden, w.cross_norm, work.normed, count);
  multiply_rows(work.normed, w.cross_q, w.cross_bias, false, work.qkv, attended(), hidden);
  RopeParams turn{};
  turn.q = work.qkv;
  turn.positions = rows.positions;
  turn.cos_sin = work.cos_sin;
  turn.type = turn.k_type = turn.v_type = weights_.dtype();
  turn.rows = count;
  turn.heads = config_.heads;
  turn.head_dim = config_.head_dim;
  turn.qkv_stride = attended();
  turn.table_rows = options_.context_tokens;
  rope(turn, *compute_);
  attend_target(rows);
  multiply_rows(work.attention, w.cross_output, nullptr, true, work.hidden, hidden, attended());
  normalise(work.hidden, w.ffn_norm, work.normed, count);
  multiply_rows(work.normed, w.gate_up, nullptr, false, work.gate_up, 2 * config_.ffn, hidden);
  silu_mul(
      {.gate_up = work.gate_up, .out = work.activated, .type = weights_.dtype(), .rows = count, .cols = config_.ffn},
      *compute_);
  multiply_rows(work.activated, w.down, nullptr, true, work.hidden, hidden, config_.ffn);
  multiply({.x = work.hidden,
            .w = target_.weights->head(),
            .bias = nullptr,
            .residual = nullptr,
            .out = work.logits,
            .rows = count,
            .n = config_.vocab,
            .k = hidden,
            .out_f32 = true});
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// The root, and what the last verify accepted before it. On a GPU, where 64 rows cost what one does, there are always
// as many: the root is repeated, and the round is the same graph whatever was accepted.
LongSpecDraft::Round LongSpecDraft::upload_round(int32_t root, int64_t position) {
  const int64_t before = cache_->rows(), stable = static_cast<int64_t>(stable_tokens_.size()) + 1;
  const int64_t rows = device_.backend() == Backend::kCpu ? stable : stable_rows();
  CHECK(stable <= stable_rows() && before + stable == position + 1, "rows ", before, " + ", stable, " at ", position);
  CHECK(target_cache_->rows() == position, "rows ", target_cache_->rows(), " at ", position);
  for (int64_t i = 0; i < rows; ++i) {
    const bool accepted = i > 0 && i < stable;
    host_->tokens[i] = accepted ? stable_tokens_[static_cast<size_t>(i - 1)] : root;
    host_->positions[i] = static_cast<int32_t>(accepted ? before + i - 1 : position);
    host_->source[i] = static_cast<int32_t>((i + 1) % stable);
  }
  std::fill_n(host_->before, most_rows(), static_cast<int32_t>(position - 1));
  *host_->root_position = static_cast<int32_t>(position);
  *host_->committed = static_cast<int32_t>(position + 1);
  compute_->copy(work_->inputs.tokens, host_inputs_.data(), work_->inputs_bytes, Link::kHostToDevice);
  return {.stable = stable, .rows = rows, .position = position, .deepest = position + builder_->levels()};
}

// Tokens to work.hidden and work.qkv; their keys and values to the rows of the round.
void LongSpecDraft::embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row) {
  enter({.tokens = tokens, .hidden = work_->hidden, .normed = work_->normed, .qkv = work_->qkv, .rows = rows});
  rotate(work_->qkv, positions, rows, cache_->pass_rows_from(0, pass_row));
}

void LongSpecDraft::grow_tree(const Round& round, const TreeRoot& root) {
  const Inputs& in = work_->inputs;
  finish_layer({.positions = in.positions, .path = in.source, .count = 1, .path_stride = 1, .deepest = round.deepest});
  builder_->grow(0, work_->logits, in.positions, root, *compute_);
  for (int64_t level = 1; level < builder_->levels() && !builder_->stopped(*compute_); ++level) {
    const TreeFrontier& frontier = builder_->frontier();
    const int64_t rows = builder_->rows(level);
    embed(frontier.tokens, frontier.positions, rows, builder_->first_pass_row(level));
    finish_layer({.positions = frontier.positions,
                  .path = frontier.path,
                  .count = rows,
                  .path_stride = frontier.path_stride,
                  .deepest = round.deepest});
    builder_->grow(level, work_->logits, frontier.positions, root, *compute_);
  }
  builder_->select(root, *compute_);
}

// Two graphs on a GPU, as Eagle3Draft::propose() has them. What the second reads changes with the rows that the window
// shows, and with the target's segments.
void LongSpecDraft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  const TraceSpan span(*compute_, "propose");
  const Inputs& in = work_->inputs;
  builder_->begin(limits);
  const Round round = upload_round(root, position);
  replay_.run(*compute_, {0, round.rows, 0, 0}, [&] { embed(in.tokens, in.positions, round.rows, 0); });
  cache_->append(in.source, round.stable, *compute_);
  const TreeRoot from = {.token = in.tokens, .position = in.root_position, .committed = in.committed};
  if (builder_->stops_early()) {
    grow_tree(round, from);
  } else {
    const Replay::Key key = {builder_->nodes() * kMaxTreeNodes + builder_->levels(), shape_.first_kept(cache_->rows()),
                             tail_begin(round.deepest), segments_for(tail_begin(round.position - 1))};
    replay_.run(*compute_, key, [&] { grow_tree(round, from); });
  }
  builder_->bring(*compute_, tree);
}

void LongSpecDraft::observe(const Tree& tree, const Acceptance& acceptance) {
  stable_tokens_.clear();
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    stable_tokens_.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
}

}  // namespace headrace
