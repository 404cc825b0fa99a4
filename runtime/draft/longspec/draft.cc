#include "runtime/draft/longspec/draft.h"

#include <algorithm>

#include "kernels/elementwise/op.h"
#include "runtime/draft/attention.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {

// A row at position p predicts the token at p + 1. The root's row is committed before the tree is grown. Sinks are
// dropped: the layer was trained without them.
LongSpecDraft::LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                             const DraftTarget& target, const DraftSetup& options)
    : LayerDraft(device, options,
                 {.rows = DraftLayerSizes::of(config, weights.dtype()).cache_rows(),
                  .context_rows = options.context_tokens,
                  .window = options.window,
                  .pass_rows = round_rows(options.tree),
                  .most_taken_back = options.most_pending,
                  .sinks = SinkRows::kGo},
                 {.shape = options.tree,
                  .vocab = config.vocab,
                  .map = nullptr,
                  .sampling = options.sampling,
                  .position_offset = 1,
                  .first_row = stable_rows(options.tree)},
                 config.vocab),
      config_(config),
      weights_(weights),
      target_(target),
      sizes_(DraftLayerSizes::of(config, weights.dtype())) {
  plan();
}

void LongSpecDraft::carve(Buffers* buffers) {
  const int64_t stable = stable_rows(options_.tree), rows = padded(queries());
  carve_inputs(stable, queries() + stable, buffers);
  work_.hidden = buffers->work.take_bytes(sizes_.bytes(rows * config_.hidden));
  work_.layer = DraftLayerWork::carve(sizes_, rows, queries(), options_.context_tokens, buffers->work);
  const int64_t kept = most_prompt_rows(options_, shape_, first_prompt_row());
  const int64_t group = std::min(padded(kept), kDraftPrefillGroupRows);
  carve_prompt(kept, buffers);
  prefill_.hidden = buffers->prefill.take_bytes(sizes_.bytes(group * config_.hidden));
  prefill_.normed = buffers->prefill.take_bytes(sizes_.bytes(group * config_.hidden));
  prefill_.qkv = buffers->prefill.take_bytes(sizes_.bytes(group * sizes_.qkv_width()));
}

uint64_t LongSpecDraft::check_bytes() const {
  const int64_t hidden = config_.hidden, qkv = sizes_.qkv_width();
  return DraftLayer::check_bytes(device_.backend(), sizes_, options_.planned_tokens(),
                                 {{.n = qkv, .k = hidden},
                                  {.n = qkv, .k = hidden, .path = ProductPath::kPrefill},
                                  {.n = sizes_.attended(), .k = hidden}});
}

void LongSpecDraft::begin() {
  layer_.emplace(sizes_, work_.layer, options_.context_tokens, *compute_);
  layer_->fill_rope(target_.config->rope, target_.config->max_positions);  // its keys use this RoPE
}

// Keys and values of the prompt's last rows: with a single layer they need no attention.
bool LongSpecDraft::finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) {
  const int64_t rows = static_cast<int64_t>(prompt.size()), first = first_prompt_row(), kept = rows - first;
  CHECK(rows == options_.prompt_tokens);
  upload_prompt(prompt, 0, first, kept);
  for (int64_t row = 0; row < kept; row += kDraftPrefillGroupRows) {
    const int64_t count = std::min(kDraftPrefillGroupRows, kept - row);
    enter({.tokens = prompt_.tokens + row,
           .hidden = prefill_.hidden,
           .normed = prefill_.normed,
           .qkv = prefill_.qkv,
           .rows = count,
           .path = ProductPath::kPrefill});
    layer_->rotate_into(*cache_, prefill_.qkv, prompt_.positions + row, first + row, count);
  }
  end_prefill(rows, false);
  return true;
}

// ---- the layer ------------------------------------------------------------------------------------------------------

void LongSpecDraft::enter(const Entrance& e) {
  const LongSpecViews& w = weights_.views();
  embed_tokens(
      target_.weights->embedding(),
      {.ids = e.tokens, .rows = e.rows, .type = weights_.dtype(), .out_type = weights_.dtype(), .out = e.hidden},
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

// Every row sees all rows that the target has committed, and none of the tree, which the target has not computed. A
// query at the last committed position sees exactly those.
void LongSpecDraft::attend_target(const DraftRows& rows) {
  const KvCache& cache = *target_cache_;
  const int64_t last = cache.shape().layers - 1, end = tail_begin(cache.rows() + cache.pending_rows() - 1);
  const KvCache::TailViews tail = cache.tail(last);
  tail_attention({.shape = layer_->attention_shape(rows.count, sizes_.attended(), cache.shape().exact()),
                  .q = work_.layer.qkv,
                  .positions = before(inputs_),
                  .committed = inputs_.root_position,
                  .path = rows.path,
                  .ring_k = tail.ring_k,
                  .ring_v = tail.ring_v,
                  .pass_k = tail.pass_k,
                  .pass_v = tail.pass_v,
                  .state = work_.layer.state,
                  .path_stride = rows.path_stride,
                  .ring_rows = kTailRingRows,
                  .pass_rows = 1},
                 *compute_);
  PrefixAttentionParams prefix{};
  prefix.shape = layer_->attention_shape(rows.count, sizes_.attended(), cache.shape());
  prefix.q = work_.layer.qkv;
  prefix.positions = before(inputs_);
  prefix.state = work_.layer.state;
  prefix.scratch = work_.layer.scratch;
  prefix.beside_tail = true;
  for (int64_t i = 0; i < segments_for(end); ++i) {
    if (prefix.segment_count == kDraftSegmentsPerLaunch) {
      prefix_attention(prefix, *compute_);
      prefix.segment_count = 0;
      prefix.beside_tail = false;
    }
    prefix.segments[prefix.segment_count++] = cache.resident_segment(last, i);
  }
  prefix.out = work_.layer.attention;
  prefix_attention(prefix, *compute_);
}

const float* LongSpecDraft::finish_layer(const DraftRows& rows) {
  const LongSpecViews& w = weights_.views();
  const DraftLayerWork& work = work_.layer;
  void* const x = work_.hidden;
  const int64_t hidden = config_.hidden, attended = sizes_.attended(), count = rows.count;
  const auto add_attention = [&](const Weight& weight) {
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
  return work.logits;
}

// ---- the round ------------------------------------------------------------------------------------------------------

// Tokens to work_.hidden and work_.qkv; keys and values to the rows of the round.
void LongSpecDraft::embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row) {
  enter({.tokens = tokens, .hidden = work_.hidden, .normed = work_.layer.normed, .qkv = work_.layer.qkv, .rows = rows});
  layer_->rotate(work_.layer.qkv, positions, rows, cache_->pass_rows_from(0, pass_row));
}

// The root, and the tokens accepted by the last verify pass before it. The root comes first, so that it alone can
// continue after its keys and values. On a GPU, where 64 rows cost as much as one, the number of rows is constant: the
// root is repeated, so the round is the same graph whatever was accepted.
LayerDraft::Round LongSpecDraft::catch_up(int32_t root, int64_t position) {
  join_early_tokens();
  const int64_t before_stable = cache_->rows(), stable = static_cast<int64_t>(stable_tokens_.size()) + 1;
  const int64_t rows = device_.backend() == Backend::kCpu ? stable : stable_rows(options_.tree);
  CHECK(stable <= stable_rows(options_.tree) && before_stable + stable == position + 1, "rows ", before_stable, " + ",
        stable, " at ", position);
  const int64_t seen = target_cache_->rows() + target_cache_->pending_rows();
  CHECK(seen == position, "rows ", seen, " at ", position);
  for (int64_t i = 0; i < rows; ++i) {
    const bool accepted = i > 0 && i < stable;
    host_.tokens[i] = accepted ? stable_tokens_[static_cast<size_t>(i - 1)] : root;
    host_.positions[i] = static_cast<int32_t>(accepted ? before_stable + i - 1 : position);
    source(host_)[i] = static_cast<int32_t>((i + 1) % stable);
  }
  std::fill_n(before(host_), queries(), static_cast<int32_t>(position - 1));
  upload_inputs(stable);
  replay_.run(*compute_, {0, rows, 0, 0}, [&] { embed(inputs_.tokens, inputs_.positions, rows, 0); });
  cache_->append(source(inputs_), stable, *compute_);
  // The work also depends on the target's segments.
  return {.row = 0, .key = segments_for(tail_begin(position - 1)), .deepest = position + builder_->levels()};
}

const float* LongSpecDraft::forward_root(const Round& round) {
  return finish_layer({.tokens = inputs_.tokens,
                       .positions = inputs_.positions,
                       .path = source(inputs_),
                       .committed = inputs_.committed,
                       .count = 1,
                       .path_stride = 1,
                       .pass_row = 0,
                       .deepest = round.deepest});
}

const float* LongSpecDraft::forward_level(const Round&, int64_t, const DraftRows& rows) {
  embed(rows.tokens, rows.positions, rows.count, rows.pass_row);
  return finish_layer(rows);
}

// After a refresh there may be more tokens than fit in a round: the first ones join the cache in separate rounds.
void LongSpecDraft::join_early_tokens() {
  const int64_t count = stable_rows(options_.tree);
  while (static_cast<int64_t>(stable_tokens_.size()) >= count) {
    upload_chain(std::span(stable_tokens_).first(static_cast<size_t>(count)), count);
    replay_.run(*compute_, {0, count, 0, 0}, [&] { embed(inputs_.tokens, inputs_.positions, count, 0); });
    cache_->append(inputs_.order, count, *compute_);
    forget_stable(count);
  }
}

// The row of the first provisional token, the root at that time, is correct.
void LongSpecDraft::rewind(int64_t position) { cache_->rewind(std::min(position + 1, cache_->rows())); }

}  // namespace headrace
