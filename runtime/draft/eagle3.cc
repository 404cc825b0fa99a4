#include "runtime/draft/eagle3.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "offload/trace.h"
#include "runtime/draft/eagle3_work.h"

namespace headrace {

Eagle3Draft::Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights,
                         const Weights& target, const DraftSetup& options)
    : device_(device),
      config_(config),
      weights_(weights),
      target_(target),
      options_(options),
      sizes_(DraftLayerSizes::of(config, weights.dtype())),
      shape_{.rows = sizes_.cache_rows(),
             .context_rows = options.context_tokens,
             .window = options.window,
             .pass_rows = round_rows(options.tree),
             .most_taken_back = options.most_pending} {}

Eagle3Draft::~Eagle3Draft() = default;

// A forwarded row of position p predicts the token of position p + 2: its feature is of p, its token of p + 1.
TreeSetup Eagle3Draft::tree_setup() const {
  return {.shape = options_.tree,
          .vocab = config_.vocab,
          .map = weights_.views().target_ids,
          .sampling = options_.sampling,
          .position_offset = 2,
          .first_row = stable_rows(options_.tree)};
}

// ---- memory ---------------------------------------------------------------------------------------------------------

Eagle3Draft::Inputs Eagle3Draft::carve_inputs(Carver& carver) const {
  const int64_t rows = stable_rows(options_.tree);
  Inputs inputs;
  for (int32_t** list : {&inputs.tokens, &inputs.positions, &inputs.features, &inputs.source}) {
    *list = carver.take<int32_t>(rows);
  }
  inputs.path = carver.take<int32_t>(rows * rows);
  for (int32_t** one : {&inputs.committed_before, &inputs.committed, &inputs.root, &inputs.slot_shift}) {
    *one = carver.take<int32_t>(1);
  }
  return inputs;
}

Eagle3Draft::Work Eagle3Draft::carve(Carver& carver) const {
  // The last of the accepted rows is multiplied with the head alone: padding after it, too.
  const int64_t most = std::max(stable_rows(options_.tree), options_.tree.widest());
  const int64_t rows = padded(most) + padded(1), nodes = padded(pass_nodes());
  const auto rows_of = [&](int64_t count, int64_t width) { return carver.take_bytes(sizes_.bytes(count * width)); };
  Work work;
  work.inputs = carve_inputs(carver);
  work.inputs_bytes = carver.used_bytes();
  work.pass_features = rows_of(nodes, config_.hidden);
  work.feature_normed = config_.fc_norm ? rows_of(nodes, config_.target_hidden) : nullptr;
  work.token = rows_of(rows, config_.hidden);
  work.feature = rows_of(rows, config_.hidden);
  work.joined = rows_of(rows, 2 * config_.hidden);
  work.output = rows_of(rows, config_.hidden);
  work.layer = DraftLayerWork::carve(sizes_, rows, most, options_.context_tokens, carver);
  return work;
}

uint64_t Eagle3Draft::product_check_bytes() const {
  const int64_t hidden = config_.hidden, target = config_.target_hidden, qkv = sizes_.qkv_width();
  return DraftLayer::check_bytes(device_.backend(), sizes_, options_.prompt_tokens,
                                 {{.n = hidden, .k = target},
                                  {.n = hidden, .k = target, .path = ProductPath::kPrefill},
                                  {.n = qkv, .k = 2 * hidden},
                                  {.n = qkv, .k = 2 * hidden, .path = ProductPath::kPrefill}});
}

DraftBufferSizes Eagle3Draft::buffer_sizes() const {
  Carver work(nullptr), prefill(nullptr), inputs(nullptr), lists(nullptr);
  carve(work);
  carve_prefill(prefill);
  carve_inputs(inputs);
  PromptRows::carve(prompt_list_rows(), lists);
  return {.work = work.used_bytes(),
          .prefill = prefill.used_bytes(),
          .inputs = inputs.used_bytes(),
          .prefill_inputs = lists.used_bytes()};
}

DraftMemory Eagle3Draft::memory() const {
  return draft_memory(buffer_sizes(), product_check_bytes(), shape_, tree_setup());
}

void Eagle3Draft::allocate(Stream& compute) {
  compute_ = &compute;
  buffers_ = DraftBuffers::allocate(device_, buffer_sizes());
  Carver carver(buffers_.work.data()), prefill(buffers_.prefill.data()), inputs(buffers_.inputs.data());
  work_ = std::make_unique<Work>(carve(carver));
  prefill_ = std::make_unique<PrefillWork>(carve_prefill(prefill));
  host_ = std::make_unique<Inputs>(carve_inputs(inputs));
  cache_.emplace(device_, shape_);
  builder_.emplace(device_, tree_setup());
  layer_.emplace(sizes_, work_->layer, options_.context_tokens, compute);
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
  project(input, 0, input.rows, work_->pass_features, work_->feature_normed, ProductPath::kDecode);
}

// Adds fc's block of this layer to the features of `rows` rows.
void Eagle3Draft::project(const LayerInput& input, int64_t first_row, int64_t rows, void* features, void* normed,
                          ProductPath path) {
  const size_t index = *feature_index(input.layer);
  const void* x = static_cast<const std::byte*>(input.hidden) + sizes_.bytes(first_row * config_.target_hidden);
  if (config_.fc_norm) {
    layer_->normalise(x, weights_.views().fc_norm[index], normed, rows, config_.target_hidden, config_.target_hidden);
    x = normed;
  }
  layer_->multiply({.x = x,
                    .w = weights_.views().fc[index],
                    .residual = index == 0 ? nullptr : features,
                    .out = features,
                    .rows = rows,
                    .n = config_.hidden,
                    .k = config_.target_hidden,
                    .path = path});
}

// ---- the layer ------------------------------------------------------------------------------------------------------

// [RMSNorm(embedding); RMSNorm(feature)] -> q, k, v.
void Eagle3Draft::join(const Join& j) {
  const Eagle3Weights::Views& w = weights_.views();
  const int64_t hidden = config_.hidden;
  embedding({.ids = j.tokens,
             .table = w.embedding != nullptr ? w.embedding : target_.embedding(),
             .out = j.token,
             .type = weights_.dtype(),
             .rows = j.rows,
             .vocab = config_.target_vocab,
             .hidden = hidden},
            *compute_);
  layer_->normalise(j.token, w.input_norm, j.joined, j.rows, hidden, 2 * hidden);
  std::byte* const second = static_cast<std::byte*>(j.joined) + sizes_.bytes(hidden);
  layer_->normalise(j.features, w.hidden_norm, second, j.rows, hidden, 2 * hidden);
  layer_->multiply({.x = j.joined,
                    .w = w.qkv,
                    .out = j.qkv,
                    .rows = j.rows,
                    .n = sizes_.qkv_width(),
                    .k = 2 * hidden,
                    .path = j.path});
}

// work.feature and the tokens -> work.output. Its rows' K and V stay in the cache's pass rows.
void Eagle3Draft::forward(const DraftRows& rows) {
  const Work& work = *work_;
  join({.tokens = rows.tokens,
        .features = work.feature,
        .token = work.token,
        .joined = work.joined,
        .qkv = work.layer.qkv,
        .rows = rows.count,
        .path = ProductPath::kDecode});
  layer_->rotate(work.layer.qkv, rows.positions, rows.count, cache_->pass_rows_from(0, rows.pass_row));
  layer_->attend(rows, *cache_);
  finish_layer(rows.count);
}

// The second half: attention and work.feature -> work.output.
void Eagle3Draft::finish_layer(int64_t rows) {
  const Eagle3Weights::Views& w = weights_.views();
  const Work& work = *work_;
  const void* residual = work.feature;
  if (config_.norm_before_residual) {
    layer_->normalise(work.feature, w.hidden_norm, work.output, rows);
    residual = work.output;
  }
  layer_->multiply({.x = work.layer.attention,
                    .w = w.output,
                    .residual = residual,
                    .out = work.output,
                    .rows = rows,
                    .n = config_.hidden,
                    .k = sizes_.attended()});
  layer_->mlp({.norm = w.ffn_norm, .gate_up = w.gate_up, .down = w.down, .hidden = work.output, .rows = rows});
  if (config_.norm_output) layer_->normalise(work.output, w.final_norm, work.output, rows);
}

// Rows [first, first + count) of work.output -> work.logits from row 0 on.
void Eagle3Draft::predict(int64_t first, int64_t count) {
  const Eagle3Weights::Views& w = weights_.views();
  const std::byte* x = static_cast<const std::byte*>(work_->output) + sizes_.bytes(first * config_.hidden);
  if (!config_.norm_output) {
    layer_->normalise(x, w.final_norm, work_->layer.normed, count);
    x = static_cast<const std::byte*>(work_->layer.normed);
  }
  layer_->multiply({.x = x,
                    .w = w.head != nullptr ? w.head : target_.head(),
                    .out = work_->layer.logits,
                    .rows = count,
                    .n = config_.vocab,
                    .k = config_.hidden,
                    .out_f32 = true});
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// What the last verify accepted, joined with the tokens that follow: rows of the cache from true features. On a GPU,
// where 64 rows cost what one does, there are always as many: beyond the last it is repeated, and the round is the same
// graph whatever was accepted.
Eagle3Draft::Round Eagle3Draft::upload_round(int64_t accepted, const TreeInputs& to) {
  const int64_t before = cache_->rows(), position = before + accepted;
  const int64_t stride = stable_rows(options_.tree), rows = device_.backend() == Backend::kCpu ? accepted : stride;
  CHECK(accepted > 0 && accepted <= stride, "accepted=", accepted);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = std::min(i, accepted - 1);
    host_->tokens[i] = stable_tokens_[static_cast<size_t>(row)];
    host_->features[i] = stable_features_[static_cast<size_t>(row)];
    host_->positions[i] = static_cast<int32_t>(before + row);
    host_->source[i] = static_cast<int32_t>(i);
    for (int64_t j = 0; j <= row; ++j) host_->path[i * stride + j] = static_cast<int32_t>(j);
  }
  *host_->committed_before = static_cast<int32_t>(before);
  *host_->committed = static_cast<int32_t>(position);
  *host_->root = stable_tokens_.back();
  *host_->slot_shift = to.slot_shift;
  compute_->copy_small(work_->inputs.tokens, buffers_.inputs.data(), work_->inputs_bytes, Link::kHostToDevice);
  return {.accepted = accepted, .rows = rows, .deepest = position + builder_->levels()};
}

void Eagle3Draft::gather(const void* from, int64_t from_rows, const int32_t* rows, int64_t count) {
  embedding({.ids = rows,
             .table = from,
             .out = work_->feature,
             .type = weights_.dtype(),
             .rows = count,
             .vocab = from_rows,
             .hidden = config_.hidden},
            *compute_);
}

// Rows of the cache for what was accepted; the last of them predicts what follows the root.
void Eagle3Draft::catch_up(const Round& round) {
  const Inputs& in = work_->inputs;
  gather(work_->pass_features, pass_nodes(), in.features, round.rows);
  forward({.tokens = in.tokens,
           .positions = in.positions,
           .path = in.path,
           .committed = in.committed_before,
           .count = round.rows,
           .path_stride = stable_rows(options_.tree),
           .pass_row = 0,
           .deepest = round.deepest});
  predict(round.rows - 1, 1);
}

void Eagle3Draft::grow_tree(const Round& round, const TreeRows& to) {
  const Inputs& in = work_->inputs;
  const TreeRoot root = {
      .token = in.root, .position = in.committed, .committed = in.committed, .slot_shift = in.slot_shift};
  builder_->grow(0, work_->layer.logits, in.positions + round.rows - 1, root, *compute_);
  int64_t parents_from = round.rows - 1;  // the rows of `output` that the frontier's parents are
  for (int64_t level = 1; level < builder_->levels() && !builder_->stopped(*compute_); ++level) {
    const TreeFrontier& frontier = builder_->frontier();
    const int64_t rows = builder_->rows(level);
    const uint64_t skipped = sizes_.bytes(parents_from * config_.hidden);
    gather(static_cast<std::byte*>(work_->output) + skipped, level == 1 ? 1 : builder_->rows(level - 1),
           frontier.parent_rows, rows);
    parents_from = 0;
    forward({.tokens = frontier.tokens,
             .positions = frontier.positions,
             .path = frontier.path,
             .committed = in.committed,
             .count = rows,
             .path_stride = frontier.path_stride,
             .pass_row = builder_->first_pass_row(level),
             .deepest = round.deepest});
    predict(0, rows);
    builder_->grow(level, work_->layer.logits, frontier.positions, root, *compute_);
  }
  builder_->select(root, to, *compute_);
}

// Two graphs on a GPU, with the commit between them, whose count is the host's to say. They change when a limit does,
// or the rows that the window shows: every 64 positions, without a window every 512.
void Eagle3Draft::play_round(int32_t root, int64_t position, const TreeInputs& to) {
  const TraceSpan span(*compute_, "propose");
  stable_tokens_.push_back(root);
  Round round{};
  for (bool last = false; !last;) {  // after a refresh there may be more than a round has room for
    const int64_t left = static_cast<int64_t>(stable_features_.size()), room = stable_rows(options_.tree);
    last = left <= room;
    round = upload_round(std::min(left, room), to);
    replay_.run(*compute_, key_of(0, round), [&] { catch_up(round); });
    cache_->append(work_->inputs.source, round.accepted, *compute_);
    if (!last) forget_stable(round.accepted);
  }
  CHECK(cache_->rows() == position, "rows ", cache_->rows(), " at ", position);
  if (builder_->stops_early()) return grow_tree(round, to.rows);
  replay_.run(*compute_, key_of(builder_->key_of(to.rows), round), [&] { grow_tree(round, to.rows); });
}

void Eagle3Draft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  builder_->begin(limits);
  play_round(root, position, {.rows = builder_->own_rows()});
  builder_->bring(*compute_, tree);
}

ProposedTree Eagle3Draft::propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) {
  builder_->begin(limits);
  if (builder_->stops_early()) return {};
  play_round(root, position, to);
  return builder_->proposed();
}

Replay::Key Eagle3Draft::key_of(int64_t part, const Round& round) const {
  return {part, round.rows, shape_.first_kept(cache_->rows()), shape_.prefix_end(round.deepest)};
}

void Eagle3Draft::forget_stable(int64_t count) {
  stable_features_.erase(stable_features_.begin(), stable_features_.begin() + count);
  stable_tokens_.erase(stable_tokens_.begin(), stable_tokens_.begin() + count);
  compute_->synchronize();  // the host side of the inputs is written again
}

// The rows of tokens that were not right go, and those of the others are made anew, from features of the full KV.
void Eagle3Draft::rewind(int64_t position) { cache_->rewind(std::min(position, cache_->rows())); }

void Eagle3Draft::observe(const Tree& tree, const Acceptance& acceptance) {
  stable_features_.assign(acceptance.nodes.begin(), acceptance.nodes.end());
  stable_tokens_.clear();
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    stable_tokens_.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
}

}  // namespace headrace
