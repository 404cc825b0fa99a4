#include "runtime/draft/eagle3.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/product.h"
#include "offload/trace.h"
#include "runtime/draft/draft_attention.h"
#include "runtime/draft/eagle3_work.h"

namespace headrace {
namespace {

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

DraftCacheShape cache_shape(const Eagle3Config& config, DType type, const Eagle3Options& options) {
  int64_t pass_rows = options.tree.deepest() + 1;  // the accepted path, then all that the levels forward
  for (size_t level = 1; level < options.tree.levels.size(); ++level) pass_rows += options.tree.levels[level].rows;
  return {
      .rows = {.layers = 1, .kv_heads = config.kv_heads, .head_dim = config.head_dim, .k_type = type, .v_type = type},
      .context_rows = options.context_tokens,
      .window = options.window,
      .pass_rows = pass_rows};
}

}  // namespace

Eagle3Draft::Eagle3Draft(Device& device, const Eagle3Config& config, const Eagle3Weights& weights,
                         const Weights& target, const Eagle3Options& options)
    : device_(device),
      config_(config),
      weights_(weights),
      target_(target),
      options_(options),
      shape_(cache_shape(config, weights.dtype(), options)) {}

Eagle3Draft::~Eagle3Draft() = default;

// A forwarded row of position p predicts the token of position p + 2: its feature is of p, its token of p + 1.
TreeSetup Eagle3Draft::tree_setup() const {
  return {.shape = options_.tree,
          .vocab = config_.vocab,
          .map = weights_.views().target_ids,
          .sampling = options_.sampling,
          .position_offset = 2,
          .first_row = stable_rows(),
          .root_row = -1};
}

// ---- memory ---------------------------------------------------------------------------------------------------------

// A product on CUDA reads and writes whole groups of rows.
int64_t Eagle3Draft::padded(int64_t rows) const {
  return device_.backend() == Backend::kCpu ? rows : static_cast<int64_t>(round_up(u(rows), kProductRowPadding));
}

int64_t Eagle3Draft::qkv_width() const { return (config_.heads + 2 * config_.kv_heads) * config_.head_dim; }
uint64_t Eagle3Draft::type_bytes() const { return dtype_bytes(weights_.dtype()); }

Eagle3Draft::Inputs Eagle3Draft::carve_inputs(Carver& carver) const {
  const int64_t rows = stable_rows();
  Inputs inputs;
  for (int32_t** list : {&inputs.tokens, &inputs.positions, &inputs.features, &inputs.source}) {
    *list = carver.take<int32_t>(rows);
  }
  inputs.path = carver.take<int32_t>(rows * rows);
  inputs.committed_before = carver.take<int32_t>(1);
  inputs.committed = carver.take<int32_t>(1);
  inputs.root = carver.take<int32_t>(1);
  return inputs;
}

Eagle3Draft::Work Eagle3Draft::carve(Carver& carver) const {
  // The last of the accepted rows is multiplied with the head alone: padding after it, too.
  const int64_t most = std::max(stable_rows(), options_.tree.widest());
  const int64_t rows = padded(most) + padded(1), states = most * config_.heads;
  const auto rows_of = [&](int64_t count, int64_t width) { return carver.take_bytes(u(count * width) * type_bytes()); };
  const auto state_of = [&](int64_t count) {
    return AttentionState{.o = carver.take<float>(count * config_.head_dim), .ml = carver.take<float>(count * 2)};
  };
  Work work;
  work.inputs = carve_inputs(carver);
  work.inputs_bytes = carver.used_bytes();
  work.inv_freq = carver.take<float>(config_.head_dim / 2);
  work.cos_sin = carver.take<float>(options_.context_tokens * config_.head_dim);
  work.pass_features = rows_of(padded(options_.tree.nodes), config_.hidden);
  work.feature_normed = config_.fc_norm ? rows_of(padded(options_.tree.nodes), config_.target_hidden) : nullptr;
  work.token = rows_of(rows, config_.hidden);
  work.feature = rows_of(rows, config_.hidden);
  work.joined = rows_of(rows, 2 * config_.hidden);
  work.qkv = rows_of(rows, qkv_width());
  work.attention = rows_of(rows, config_.heads * config_.head_dim);
  work.normed = rows_of(rows, config_.hidden);
  work.gate_up = rows_of(rows, 2 * config_.ffn);
  work.activated = rows_of(rows, config_.ffn);
  work.output = rows_of(rows, config_.hidden);
  work.logits = carver.take<float>(rows * config_.vocab);
  work.state = state_of(states);
  work.scratch = state_of(states * kDraftSegmentsPerLaunch);
  return work;
}

// What checking the layer's products takes, one kind at a time.
uint64_t Eagle3Draft::product_check_room() const {
  const int64_t hidden = config_.hidden;
  uint64_t most = 0;
  const auto add = [&](int64_t n, int64_t k, ProductPath path, bool f32) {
    ProductParams params{};
    params.type = weights_.dtype();
    params.out_type = f32 ? DType::kF32 : weights_.dtype();
    params.rows = path == ProductPath::kDecode ? 1 : std::min(options_.prompt_tokens, kPrefillGroupRows);
    params.n = n;
    params.k = k;
    params.path = path;
    most = std::max(most, product_check_bytes(device_.backend(), params));
  };
  for (const ProductPath path : {ProductPath::kDecode, ProductPath::kPrefill}) {
    add(hidden, config_.target_hidden, path, false);
    add(qkv_width(), 2 * hidden, path, false);
  }
  add(hidden, config_.heads * config_.head_dim, ProductPath::kDecode, false);
  add(2 * config_.ffn, hidden, ProductPath::kDecode, false);
  add(hidden, config_.ffn, ProductPath::kDecode, false);
  add(config_.vocab, hidden, ProductPath::kDecode, true);
  return most;
}

DraftMemory Eagle3Draft::memory() const {
  Carver lasting(nullptr), prefill(nullptr), inputs(nullptr);
  carve(lasting);
  carve_prefill(prefill);
  carve_inputs(inputs);
  return {.lasting_bytes = whole_pages(lasting.used_bytes()) + product_check_room() + shape_.bytes() +
                           TreeBuilder::device_bytes(tree_setup()),
          .prefill_bytes = whole_pages(prefill.used_bytes()),
          .pinned_bytes = whole_pages(inputs.used_bytes()) + whole_pages(prefill_staging_bytes()) +
                          TreeBuilder::pinned_bytes(tree_setup())};
}

void Eagle3Draft::allocate(Stream& compute) {
  Carver size(nullptr), prefill_size(nullptr), inputs_size(nullptr);
  carve(size);
  carve_prefill(prefill_size);
  carve_inputs(inputs_size);
  compute_ = &compute;
  memory_ = device_.allocate(size.used_bytes(), "the draft's buffers");
  prefill_memory_ = device_.allocate(prefill_size.used_bytes(), "the draft's prefill");
  host_inputs_ = device_.allocate_pinned(inputs_size.used_bytes(), "the draft's inputs");
  prefill_staging_ = device_.allocate_pinned(prefill_staging_bytes(), "the draft's prompt");
  Carver carver(memory_.data()), prefill_carver(prefill_memory_.data()), host_carver(host_inputs_.data());
  work_ = std::make_unique<Work>(carve(carver));
  prefill_ = std::make_unique<PrefillWork>(carve_prefill(prefill_carver));
  host_ = std::make_unique<Inputs>(carve_inputs(host_carver));
  cache_.emplace(device_, shape_);
  builder_.emplace(device_, tree_setup());
  upload_rope_table();
}

void Eagle3Draft::upload_rope_table() {
  fill_rope_table({.rope = &config_.rope,
                   .head_dim = config_.head_dim,
                   .max_positions = config_.max_positions,
                   .rows = options_.context_tokens,
                   .inv_freq = work_->inv_freq,
                   .cos_sin = work_->cos_sin},
                  *compute_);
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
  const void* x = static_cast<const std::byte*>(input.hidden) + u(first_row * config_.target_hidden) * type_bytes();
  if (config_.fc_norm) {
    normalise(x, weights_.views().fc_norm[index], normed, rows, config_.target_hidden, config_.target_hidden);
    x = normed;
  }
  multiply({.x = x,
            .w = weights_.views().fc[index],
            .residual = index == 0 ? nullptr : features,
            .out = features,
            .rows = rows,
            .n = config_.hidden,
            .k = config_.target_hidden,
            .path = path});
}

// ---- the layer ------------------------------------------------------------------------------------------------------

void Eagle3Draft::multiply(const Multiply& m) {
  product({.x = m.x,
           .w = m.w,
           .bias = nullptr,
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

void Eagle3Draft::normalise(const void* x, const void* weight, void* out, int64_t rows, int64_t cols,
                            int64_t out_stride) {
  rms_norm({.x = x,
            .weight = weight,
            .out = out,
            .type = weights_.dtype(),
            .rows = rows,
            .groups = 1,
            .cols = cols,
            .x_stride = cols,
            .out_stride = out_stride,
            .eps = static_cast<float>(config_.rms_eps)},
           *compute_);
}

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
  normalise(j.token, w.input_norm, j.joined, j.rows, hidden, 2 * hidden);
  std::byte* const second = static_cast<std::byte*>(j.joined) + u(hidden) * type_bytes();
  normalise(j.features, w.hidden_norm, second, j.rows, hidden, 2 * hidden);
  multiply({.x = j.joined,
            .w = w.qkv,
            .residual = nullptr,
            .out = j.qkv,
            .rows = j.rows,
            .n = qkv_width(),
            .k = 2 * hidden,
            .path = j.path});
}

void Eagle3Draft::rotate(void* qkv, const int32_t* positions, int64_t rows, const KvRows& to) {
  std::byte* const q = static_cast<std::byte*>(qkv);
  const uint64_t q_bytes = u(config_.heads * config_.head_dim) * type_bytes();
  const uint64_t k_bytes = u(config_.kv_heads * config_.head_dim) * type_bytes();
  rope({.q = q,
        .k = q + q_bytes,
        .v = q + q_bytes + k_bytes,
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

// work.feature and the tokens -> work.output. Its rows' K and V stay in the cache's pass rows.
void Eagle3Draft::forward(const Rows& rows) {
  const Work& work = *work_;
  join({.tokens = rows.tokens,
        .features = work.feature,
        .token = work.token,
        .joined = work.joined,
        .qkv = work.qkv,
        .rows = rows.count,
        .path = ProductPath::kDecode});
  rotate(work.qkv, rows.positions, rows.count, cache_->pass_rows_from(0, rows.pass_row));
  attend(rows);
  finish_layer(rows.count);
}

// The second half: work.attention and work.feature -> work.output.
void Eagle3Draft::finish_layer(int64_t rows) {
  const Eagle3Weights::Views& w = weights_.views();
  const Work& work = *work_;
  const int64_t hidden = config_.hidden, attended = config_.heads * config_.head_dim;
  const auto multiply_rows = [&](const void* x, const void* weight, const void* residual, void* out, int64_t n,
                                 int64_t k) {
    multiply({.x = x,
              .w = weight,
              .residual = residual,
              .out = out,
              .rows = rows,
              .n = n,
              .k = k,
              .path = ProductPath::kDecode});
  };
  const void* residual = work.feature;
  if (config_.norm_before_residual) {
    normalise(work.feature, w.hidden_norm, work.output, rows, hidden, hidden);
    residual = work.output;
  }
  multiply_rows(work.attention, w.output, residual, work.output, hidden, attended);
  normalise(work.output, w.ffn_norm, work.normed, rows, hidden, hidden);
  multiply_rows(work.normed, w.gate_up, nullptr, work.gate_up, 2 * config_.ffn, hidden);
  silu_mul(
      {.gate_up = work.gate_up, .out = work.activated, .type = weights_.dtype(), .rows = rows, .cols = config_.ffn},
      *compute_);
  multiply_rows(work.activated, w.down, work.output, work.output, hidden, config_.ffn);
  if (config_.norm_output) normalise(work.output, w.final_norm, work.output, rows, hidden, hidden);
}

// Rows [first, first + count) of work.output -> work.logits from row 0 on.
void Eagle3Draft::predict(int64_t first, int64_t count) {
  const Eagle3Weights::Views& w = weights_.views();
  const std::byte* x = static_cast<const std::byte*>(work_->output) + u(first * config_.hidden) * type_bytes();
  if (!config_.norm_output) {
    normalise(x, w.final_norm, work_->normed, count, config_.hidden, config_.hidden);
    x = static_cast<const std::byte*>(work_->normed);
  }
  multiply({.x = x,
            .w = w.head != nullptr ? w.head : target_.head(),
            .residual = nullptr,
            .out = work_->logits,
            .rows = count,
            .n = config_.vocab,
            .k = config_.hidden,
            .path = ProductPath::kDecode,
            .out_f32 = true});
}

void Eagle3Draft::attend(const Rows& rows) {
  draft_attention({.layer = 0,
                   .shape = {.queries = rows.count,
                             .heads = config_.heads,
                             .kv_heads = config_.kv_heads,
                             .head_dim = config_.head_dim,
                             .q_stride = qkv_width(),
                             .type = weights_.dtype(),
                             .k_type = shape_.rows.k_type,
                             .v_type = shape_.rows.v_type,
                             .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)))},
                   .q = work_->qkv,
                   .positions = rows.positions,
                   .committed = rows.committed,
                   .path = rows.path,
                   .path_stride = rows.path_stride,
                   .deepest = rows.deepest,
                   .state = work_->state,
                   .scratch = work_->scratch,
                   .out = work_->attention},
                  *cache_, &prefix_, *compute_);
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// What the last verify accepted, joined with the tokens that follow: rows of the cache from true features. On a GPU,
// where 64 rows cost what one does, there are always as many: beyond the last it is repeated, and the round is the same
// graph whatever was accepted.
Eagle3Draft::Round Eagle3Draft::upload_round(int32_t root, int64_t position) {
  const int64_t before = cache_->rows(), accepted = static_cast<int64_t>(stable_features_.size());
  const int64_t stride = stable_rows(), rows = device_.backend() == Backend::kCpu ? accepted : stride;
  CHECK(accepted > 0 && accepted <= stride && before + accepted == position, "rows ", before, " + ", accepted, " at ",
        position);
  stable_tokens_.push_back(root);
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
  *host_->root = root;
  compute_->copy(work_->inputs.tokens, host_inputs_.data(), work_->inputs_bytes, Link::kHostToDevice);
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
  gather(work_->pass_features, options_.tree.nodes, in.features, round.rows);
  forward({.tokens = in.tokens,
           .positions = in.positions,
           .path = in.path,
           .committed = in.committed_before,
           .count = round.rows,
           .path_stride = stable_rows(),
           .pass_row = 0,
           .deepest = round.deepest});
  predict(round.rows - 1, 1);
}

void Eagle3Draft::grow_tree(const Round& round, const TreeRoot& root) {
  builder_->grow(0, work_->logits, work_->inputs.positions + round.rows - 1, root, *compute_);
  int64_t parents_from = round.rows - 1;  // the rows of `output` that the frontier's parents are
  for (int64_t level = 1; level < builder_->levels() && !builder_->stopped(*compute_); ++level) {
    const TreeFrontier& frontier = builder_->frontier();
    const int64_t rows = builder_->rows(level);
    const uint64_t skipped = u(parents_from * config_.hidden) * type_bytes();
    gather(static_cast<std::byte*>(work_->output) + skipped, level == 1 ? 1 : builder_->rows(level - 1),
           frontier.parent_rows, rows);
    parents_from = 0;
    forward({.tokens = frontier.tokens,
             .positions = frontier.positions,
             .path = frontier.path,
             .committed = work_->inputs.committed,
             .count = rows,
             .path_stride = frontier.path_stride,
             .pass_row = builder_->first_pass_row(level),
             .deepest = round.deepest});
    predict(0, rows);
    builder_->grow(level, work_->logits, frontier.positions, root, *compute_);
  }
  builder_->select(root, *compute_);
}

// Two graphs on a GPU, with the commit between them, whose count is the host's to say. They change when a limit does,
// or the rows that the window shows: every 64 positions.
void Eagle3Draft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  const TraceSpan span(*compute_, "propose");
  const Inputs& in = work_->inputs;
  builder_->begin(limits);
  const Round round = upload_round(root, position);
  const auto key = [&](int64_t part) {
    return Replay::Key{part, round.rows, shape_.first_kept(cache_->rows()), tail_begin(round.deepest)};
  };
  replay_.run(*compute_, key(0), [&] { catch_up(round); });
  cache_->append(in.source, round.accepted, *compute_);
  const TreeRoot from = {.token = in.root, .position = in.committed, .committed = in.committed};
  if (builder_->stops_early()) {
    grow_tree(round, from);
  } else {
    replay_.run(*compute_, key(builder_->nodes() * kMaxTreeNodes + builder_->levels()),
                [&] { grow_tree(round, from); });
  }
  builder_->bring(*compute_, tree);
}

void Eagle3Draft::observe(const Tree& tree, const Acceptance& acceptance) {
  stable_features_.assign(acceptance.nodes.begin(), acceptance.nodes.end());
  stable_tokens_.clear();
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    stable_tokens_.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
}

}  // namespace headrace
