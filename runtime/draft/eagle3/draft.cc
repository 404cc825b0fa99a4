#include "runtime/draft/eagle3/draft.h"

#include <algorithm>

#include "kernels/elementwise/op.h"

namespace headrace {
namespace {

DraftDecoder decoder_of(const Eagle3Config& config, const Eagle3Weights& weights) {
  const DType type = weights.dtype();
  const LayerSpec layer = config.layer();
  const std::vector<ProductSize> products = {{config.hidden, config.target_hidden, type},
                                             {layer.attention().qkv_width(), 2 * config.hidden, type}};
  return {.layers = {layer},
          .hidden = config.hidden,
          .logits = config.vocab,
          .type = type,
          .hidden_type = type,
          .keeps_blocks = weights.keeps_blocks(),
          .rms_eps = config.rms_eps,
          .rope = &config.rope,
          .max_positions = config.max_positions,
          .products = products,
          .prompt_products = products};
}

}  // namespace

// A forwarded row of position p predicts the token of position p + 2: its feature is for p, its token for p + 1.
Eagle3Draft::Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights,
                         const Weights& target, const DraftSetup& options)
    : LayerDraft(device, options, decoder_of(config, weights),
                 {.context_rows = options.run.context_tokens,
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
      target_(target) {
  plan();
}

// ---- memory ---------------------------------------------------------------------------------------------------------

void Eagle3Draft::carve(Buffers* buffers) {
  const int64_t stable = stable_rows(options_.tree), most = most_rows(stable);
  // Only the last accepted row is multiplied with the head; it needs padding too.
  const int64_t rows = padded(most) + padded(1), nodes = padded(pass_nodes());
  const auto rows_of = [&](int64_t count, int64_t width) { return buffers->work.take_bytes(bytes(count * width)); };
  carve_inputs(stable, stable, buffers);
  work_.pass_features = rows_of(nodes, config_.hidden);
  work_.states = rows_of(nodes, config_.target_hidden);
  work_.feature = rows_of(rows, config_.hidden);
  work_.output = rows_of(rows, config_.hidden);
  carve_layers(rows, most, rows, buffers);
  work_.joined = {rows_of(rows, config_.hidden), rows_of(rows, 2 * config_.hidden)};
  carve_prefill(buffers);
}

// ---- the target's states --------------------------------------------------------------------------------------------

std::optional<size_t> Eagle3Draft::feature_index(int64_t layer) const {
  const auto found = std::find(config_.feature_layers.begin(), config_.feature_layers.end(), layer);
  if (found == config_.feature_layers.end()) return std::nullopt;
  return static_cast<size_t>(found - config_.feature_layers.begin());
}

void Eagle3Draft::pass_layer(const LayerInput& input) {
  if (!feature_index(input.layer)) return;
  project(make_pass(nullptr, input.rows), input, 0, work_.pass_features, work_.states);
}

// Adds fc's block of this layer to the features of the pass's rows, which are the input's from `first_row` on. `states`
// is room for what fc reads, where that is not the target's states themselves: they are rounded to the head's type, and
// normalised with fc_norm.
void Eagle3Draft::project(const Pass& pass, const LayerInput& input, int64_t first_row, void* features, void* states) {
  const size_t index = *feature_index(input.layer);
  const Eagle3Views& w = weights_.views();
  const int64_t width = config_.target_hidden;
  const void* x =
      static_cast<const std::byte*>(input.hidden) + static_cast<uint64_t>(first_row * width) * dtype_bytes(input.type);
  if (input.type != pass.type) {
    convert({.in = x, .out = states, .in_type = input.type, .out_type = pass.type, .count = pass.rows * width},
            *compute_);
    x = states;
  }
  if (config_.fc_norm) {
    normalise(pass, {.x = x, .weight = w.fc_norm[index], .out = states, .cols = width, .out_stride = width});
    x = states;
  }
  multiply(pass, {.x = x, .weight = w.fc[index], .residual = index == 0 ? nullptr : features, .out = features});
}

// ---- the layer ------------------------------------------------------------------------------------------------------

// [RMSNorm(embedding of a token); RMSNorm(its feature)] -> q, k, v.
void Eagle3Draft::join(const Pass& pass, const int32_t* tokens, const void* features, const Joined& to) {
  const Eagle3Views& w = weights_.views();
  const int64_t hidden = config_.hidden;
  embed_tokens(w.embedding != nullptr ? w.embedding : target_.embedding(),
               {.ids = tokens, .rows = pass.rows, .type = pass.type, .out_type = pass.type, .out = to.token},
               *compute_);
  normalise(pass, {to.token, w.input_norm, to.joined, hidden, 2 * hidden});
  normalise(pass, {features, w.hidden_norm, pass.at(to.joined, hidden), hidden, 2 * hidden});
  multiply(pass, {.x = to.joined, .weight = w.qkv, .out = pass.work.qkv});
}

// work_.feature and the tokens -> work_.output. The rows' K and V go to the cache's pass rows.
void Eagle3Draft::forward(const DraftRows& rows) {
  const Pass pass = make_pass(rows.positions, rows.count);
  join(pass, rows.tokens, work_.feature, work_.joined);
  rotate_rows(pass, weights_.views(), 0, rows.count, cache_->pass_rows_from(0, rows.pass_row));
  attend(pass, 0, weights_.views(), rows);
  finish_layer(pass);
}

// The second half: attention and work_.feature -> work_.output.
void Eagle3Draft::finish_layer(const Pass& pass) {
  const Eagle3Views& w = weights_.views();
  const int64_t hidden = config_.hidden;
  const void* residual = work_.feature;
  if (config_.norm_before_residual) {
    normalise(pass, {work_.feature, w.hidden_norm, work_.output, hidden, hidden});
    residual = work_.output;
  }
  attention_output(pass, w, residual, work_.output);
  feed_forward(pass, w, work_.output);
  if (config_.norm_output) normalise(pass, {work_.output, w.final_norm, work_.output, hidden, hidden});
}

// Rows [first, first + count) of work_.output -> logits from row 0 on.
void Eagle3Draft::predict(int64_t first, int64_t count) {
  const Eagle3Views& w = weights_.views();
  const Pass pass = make_pass(nullptr, count);
  output_logits(pass, config_.norm_output ? nullptr : w.final_norm, w.head != nullptr ? w.head : target_.head(),
                pass.at(work_.output, first * config_.hidden), layers_.logits);
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
  gather(static_cast<std::byte*>(work_.output) + bytes(from * config_.hidden), count, builder_->frontier().parent_rows,
         rows.count);
  forward(rows);
  predict(0, rows.count);
  return layers_.logits;
}

// Drops the rows of rejected tokens; the others are recomputed from features of the full KV.
void Eagle3Draft::rewind(int64_t position) { cache_->rewind(std::min(position, cache_->rows())); }

void Eagle3Draft::observe(const Tree& tree, const Acceptance& acceptance) {
  LayerDraft::observe(tree, acceptance);
  stable_features_.assign(acceptance.nodes.begin(), acceptance.nodes.end());
}

}  // namespace headrace
