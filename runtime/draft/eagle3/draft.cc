#include "runtime/draft/eagle3/draft.h"

#include <algorithm>

#include "kernels/elementwise/op.h"

namespace headrace {

// A forwarded row of position p predicts the token of position p + 2: its feature is for p, its token for p + 1.
Eagle3Draft::Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights,
                         const Weights& target, const DraftSetup& options)
    : LayerDraft(device, options,
                 {.rows = DraftLayerSizes::of(config, weights.dtype()).cache_rows(),
                  .context_rows = options.run.context_tokens,
                  .window = options.window,
                  .pass_rows = round_rows(options.tree),
                  .most_taken_back = options.shares() ? options.run.context_tokens : options.run.most_pending,
                  .sinks = options.retrieval.shape.chunks > 0 ? SinkRows::kFollowTheWindow : SinkRows::kStay,
                  .chosen_rows = options.retrieval.shape.placed_rows()},
                 {.shape = options.tree,
                  .vocab = config.vocab,
                  .map = static_cast<const int32_t*>(weights.views().target_ids),
                  .sampling = options.run.sampling,
                  .position_offset = 2,
                  .first_row = stable_rows(options.tree)},
                 config.target_vocab),
      config_(config),
      weights_(weights),
      target_(target),
      sizes_(DraftLayerSizes::of(config, weights.dtype())) {
  plan();
}

// ---- memory ---------------------------------------------------------------------------------------------------------

void Eagle3Draft::carve(Buffers* buffers) {
  const int64_t stable = stable_rows(options_.tree), most = most_rows(stable);
  // Only the last accepted row is multiplied with the head; it needs padding too.
  const int64_t rows = padded(most) + padded(1), nodes = padded(pass_nodes());
  const auto rows_of = [&](int64_t count, int64_t width) {
    return buffers->work.take_bytes(sizes_.bytes(count * width));
  };
  carve_inputs(stable, stable, buffers);
  work_.pass_features = rows_of(nodes, config_.hidden);
  work_.states = rows_of(nodes, config_.target_hidden);
  work_.feature = rows_of(rows, config_.hidden);
  work_.output = rows_of(rows, config_.hidden);
  work_.layer = DraftLayerWork::carve(sizes_, rows, most, options_.run.context_tokens, buffers->work);
  work_.joined = {rows_of(rows, config_.hidden), rows_of(rows, 2 * config_.hidden), work_.layer.qkv};
  carve_prefill(buffers);
}

uint64_t Eagle3Draft::product_bytes() const {
  const int64_t hidden = config_.hidden, target = config_.target_hidden, qkv = sizes_.qkv_width();
  const ProductPlace place = product_place(device_.backend(), device_.threads(), weights_.keeps_blocks());
  return DraftLayer::product_bytes(place, sizes_, options_.planned_tokens(),
                                   {{.n = hidden, .k = target},
                                    {.n = hidden, .k = target, .path = ProductPath::kPrefill},
                                    {.n = qkv, .k = 2 * hidden},
                                    {.n = qkv, .k = 2 * hidden, .path = ProductPath::kPrefill}});
}

void Eagle3Draft::begin() {
  layer_.emplace(sizes_, work_.layer, options_.run.context_tokens, *compute_);
  layer_->fill_rope(config_.rope, config_.max_positions);
}

// ---- the target's states --------------------------------------------------------------------------------------------

std::optional<size_t> Eagle3Draft::feature_index(int64_t layer) const {
  const auto found = std::find(config_.feature_layers.begin(), config_.feature_layers.end(), layer);
  if (found == config_.feature_layers.end()) return std::nullopt;
  return static_cast<size_t>(found - config_.feature_layers.begin());
}

void Eagle3Draft::pass_layer(const LayerInput& input) {
  if (!feature_index(input.layer)) return;
  project(input, 0, input.rows, work_.pass_features, work_.states, ProductPath::kDecode);
}

// Adds fc's block of this layer to the features of `rows` rows. `states` is room for what fc reads, where that is not
// the target's states themselves: they are rounded to the head's type, and normalised with fc_norm.
void Eagle3Draft::project(const LayerInput& input, int64_t first_row, int64_t rows, void* features, void* states,
                          ProductPath path) {
  const size_t index = *feature_index(input.layer);
  const int64_t width = config_.target_hidden;
  const void* x =
      static_cast<const std::byte*>(input.hidden) + static_cast<uint64_t>(first_row * width) * dtype_bytes(input.type);
  if (input.type != sizes_.type) {
    convert({.in = x, .out = states, .in_type = input.type, .out_type = sizes_.type, .count = rows * width}, *compute_);
    x = states;
  }
  if (config_.fc_norm) {
    layer_->normalise(x, weights_.views().fc_norm[index], states, rows, width, width);
    x = states;
  }
  layer_->multiply({.x = x,
                    .w = weights_.views().fc[index],
                    .residual = index == 0 ? nullptr : features,
                    .out = features,
                    .rows = rows,
                    .n = config_.hidden,
                    .k = width,
                    .path = path});
}

// ---- the layer ------------------------------------------------------------------------------------------------------

// [RMSNorm(embedding of a token); RMSNorm(its feature)] -> q, k, v.
void Eagle3Draft::join(const int32_t* tokens, const void* features, const Joined& to, int64_t rows, ProductPath path) {
  const Eagle3Views& w = weights_.views();
  const int64_t hidden = config_.hidden;
  embed_tokens(w.embedding != nullptr ? w.embedding : target_.embedding(),
               {.ids = tokens, .rows = rows, .type = weights_.dtype(), .out_type = weights_.dtype(), .out = to.token},
               *compute_);
  layer_->normalise(to.token, w.input_norm, to.joined, rows, hidden, 2 * hidden);
  std::byte* const second = static_cast<std::byte*>(to.joined) + sizes_.bytes(hidden);
  layer_->normalise(features, w.hidden_norm, second, rows, hidden, 2 * hidden);
  layer_->multiply({.x = to.joined,
                    .w = w.qkv,
                    .out = to.qkv,
                    .rows = rows,
                    .n = sizes_.qkv_width(),
                    .k = 2 * hidden,
                    .path = path});
}

// work_.feature and the tokens -> work_.output. The rows' K and V go to the cache's pass rows.
void Eagle3Draft::forward(const DraftRows& rows) {
  join(rows.tokens, work_.feature, work_.joined, rows.count, ProductPath::kDecode);
  layer_->rotate(work_.layer.qkv, rows.positions, rows.count, cache_->pass_rows_from(0, rows.pass_row));
  layer_->attend(rows, *cache_);
  finish_layer(rows.count);
}

// The second half: attention and work_.feature -> work_.output.
void Eagle3Draft::finish_layer(int64_t rows) {
  const Eagle3Views& w = weights_.views();
  const void* residual = work_.feature;
  if (config_.norm_before_residual) {
    layer_->normalise(work_.feature, w.hidden_norm, work_.output, rows);
    residual = work_.output;
  }
  layer_->multiply({.x = work_.layer.attention,
                    .w = w.output,
                    .residual = residual,
                    .out = work_.output,
                    .rows = rows,
                    .n = config_.hidden,
                    .k = sizes_.attended()});
  layer_->mlp({.norm = w.ffn_norm, .gate_up = w.gate_up, .down = w.down, .hidden = work_.output, .rows = rows});
  if (config_.norm_output) layer_->normalise(work_.output, w.final_norm, work_.output, rows);
}

// Rows [first, first + count) of work_.output -> work_.logits from row 0 on.
void Eagle3Draft::predict(int64_t first, int64_t count) {
  const Eagle3Views& w = weights_.views();
  const std::byte* x = static_cast<const std::byte*>(work_.output) + sizes_.bytes(first * config_.hidden);
  if (!config_.norm_output) {
    layer_->normalise(x, w.final_norm, work_.layer.normed, count);
    x = static_cast<const std::byte*>(work_.layer.normed);
  }
  layer_->multiply({.x = x,
                    .w = w.head != nullptr ? w.head : target_.head(),
                    .out = work_.layer.logits,
                    .rows = count,
                    .n = config_.vocab,
                    .k = config_.hidden,
                    .out_f32 = true});
}

// ---- the round ------------------------------------------------------------------------------------------------------

void Eagle3Draft::gather(const void* from, int64_t from_rows, const int32_t* rows, int64_t count) {
  embedding({.ids = rows,
             .table = from,
             .out = work_.feature,
             .type = weights_.dtype(),
             .out_type = weights_.dtype(),
             .rows = count,
             .vocab = from_rows,
             .hidden = config_.hidden},
            *compute_);
}

// Joins the tokens that the last verify pass accepted with the tokens that follow them: rows of the cache from true
// features. The last row predicts the token after the root. On a GPU, where 64 rows cost as much as one, the number of
// rows is constant: the last one is repeated, so the round is the same graph whatever was accepted.
LayerDraft::Round Eagle3Draft::catch_up(int32_t root, int64_t position) {
  stable_tokens_.push_back(root);
  const int64_t room = stable_rows(options_.tree);
  Round round;
  for (;;) {  // after a refresh there may be more than fit in a round
    const int64_t left = static_cast<int64_t>(stable_features_.size()), accepted = std::min(left, room);
    const int64_t rows = device_.backend() == Backend::kCpu ? accepted : room;
    CHECK(accepted > 0, "at ", position);
    place_rows_before_window();
    for (int64_t i = 0; i < rows; ++i) host_.more[i] = stable_features_[static_cast<size_t>(std::min(i, accepted - 1))];
    upload_chain(std::span(stable_tokens_).first(static_cast<size_t>(accepted)), rows);
    round = {.row = rows - 1, .key = rows, .deepest = cache_->rows() + accepted + builder_->levels()};
    replay_.run(*compute_, {0, rows, prefix_key(), shape_.prefix_end(round.deepest)}, [&] {
      gather(work_.pass_features, pass_nodes(), inputs_.more, rows);
      forward({.tokens = inputs_.tokens,
               .positions = inputs_.positions,
               .path = inputs_.path,
               .committed = inputs_.committed_before,
               .count = rows,
               .path_stride = room,
               .pass_row = 0,
               .deepest = round.deepest});
      predict(rows - 1, 1);
    });
    cache_->append(inputs_.order, accepted, *compute_);
    if (left <= room) break;
    stable_features_.erase(stable_features_.begin(), stable_features_.begin() + accepted);
    forget_stable(accepted);
  }
  CHECK(cache_->rows() == position, "rows ", cache_->rows(), " at ", position);
  place_rows_before_window();
  return round;
}

// The features of a level are the outputs of its parents.
const float* Eagle3Draft::forward_level(const Round& round, int64_t level, const DraftRows& rows) {
  const int64_t from = level == 1 ? round.row : 0, count = level == 1 ? 1 : builder_->rows(level - 1);
  gather(static_cast<std::byte*>(work_.output) + sizes_.bytes(from * config_.hidden), count,
         builder_->frontier().parent_rows, rows.count);
  forward(rows);
  predict(0, rows.count);
  return work_.layer.logits;
}

// Drops the rows of rejected tokens; the others are recomputed from features of the full KV.
void Eagle3Draft::rewind(int64_t position) { cache_->rewind(std::min(position, cache_->rows())); }

void Eagle3Draft::observe(const Tree& tree, const Acceptance& acceptance) {
  LayerDraft::observe(tree, acceptance);
  stable_features_.assign(acceptance.nodes.begin(), acceptance.nodes.end());
}

}  // namespace headrace
