#include "runtime/draft/longspec.h"

#include <algorithm>
#include <cmath>

#include "kernels/elementwise.h"
#include "kernels/product.h"
#include "offload/trace.h"
#include "runtime/draft/draft_attention.h"
#include "runtime/kv_cache.h"

namespace headrace {
namespace {

constexpr int64_t kPrefillGroupRows = 2048;

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

DraftCacheShape cache_shape(const LongSpecConfig& config, DType type, const LongSpecOptions& options) {
  int64_t pass_rows = options.tree.deepest() + 1;  // the accepted path, then all that the levels forward
  for (size_t level = 1; level < options.tree.levels.size(); ++level) pass_rows += options.tree.levels[level].rows;
  return {
      .rows = {.layers = 1, .kv_heads = config.kv_heads, .head_dim = config.head_dim, .k_type = type, .v_type = type},
      .context_rows = options.context_tokens,
      .window = options.window,
      .pass_rows = pass_rows,
      .sinks = SinkRows::kGo};  // it was trained without them
}

}  // namespace

// What a round reads from the host, in one block that is copied once: the root, then what was accepted before it. The
// root comes first, so that it alone can go on behind its keys and values.
struct LongSpecDraft::Inputs {
  int32_t *tokens, *positions, *source;  // [stable rows]
  int32_t* before;                       // [most rows]: the last position of the target's cache, for each query
  int32_t *root_position, *committed;    // [1]: the target's rows, and the cache's with the root in it
};

struct LongSpecDraft::Work {
  Inputs inputs;
  uint64_t inputs_bytes;
  float *inv_freq, *cos_sin;  // [head_dim / 2], [context, head_dim]
  void *hidden, *normed;      // [rows, hidden]
  void *qkv, *attention;      // [rows, (heads + 2 kv_heads) * head_dim], [rows, heads * head_dim]
  void *gate_up, *activated;  // [rows, 2 ffn], [rows, ffn]
  float* logits;              // [rows, vocab]
  AttentionState state, scratch;
};

struct LongSpecDraft::PrefillWork {
  int32_t *tokens, *positions;  // [kept rows]
  void *hidden, *normed, *qkv;  // of one group
};

LongSpecDraft::LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                             const LongSpecTarget& target, const LongSpecOptions& options)
    : device_(device),
      config_(config),
      weights_(weights),
      target_(target),
      options_(options),
      shape_(cache_shape(config, weights.dtype(), options)) {}

LongSpecDraft::~LongSpecDraft() = default;

// ---- memory ---------------------------------------------------------------------------------------------------------

// A row at position p predicts the token at p + 1. The root's row is committed before the tree is grown.
TreeSetup LongSpecDraft::tree_setup() const {
  return {.shape = options_.tree,
          .vocab = config_.vocab,
          .map = nullptr,
          .sampling = options_.sampling,
          .position_offset = 1,
          .first_row = stable_rows(),
          .root_row = -1};
}

// A product on CUDA reads and writes whole groups of rows.
int64_t LongSpecDraft::padded(int64_t rows) const {
  return device_.backend() == Backend::kCpu ? rows : static_cast<int64_t>(round_up(u(rows), kProductRowPadding));
}

int64_t LongSpecDraft::qkv_width() const { return (config_.heads + 2 * config_.kv_heads) * config_.head_dim; }
uint64_t LongSpecDraft::type_bytes() const { return dtype_bytes(weights_.dtype()); }
int64_t LongSpecDraft::most_rows() const { return std::max(stable_rows(), options_.tree.widest()); }
int64_t LongSpecDraft::first_prompt_row() const { return shape_.first_kept(options_.prompt_tokens); }

LongSpecDraft::Inputs LongSpecDraft::carve_inputs(Carver& carver) const {
  Inputs inputs;
  for (int32_t** list : {&inputs.tokens, &inputs.positions, &inputs.source}) {
    *list = carver.take<int32_t>(stable_rows());
  }
  inputs.before = carver.take<int32_t>(most_rows());
  inputs.root_position = carver.take<int32_t>(1);
  inputs.committed = carver.take<int32_t>(1);
  return inputs;
}

LongSpecDraft::Work LongSpecDraft::carve(Carver& carver) const {
  const int64_t rows = padded(most_rows()), states = most_rows() * config_.heads;
  const auto rows_of = [&](int64_t width) { return carver.take_bytes(u(rows * width) * type_bytes()); };
  const auto state_of = [&](int64_t count) {
    return AttentionState{.o = carver.take<float>(count * config_.head_dim), .ml = carver.take<float>(count * 2)};
  };
  Work work;
  work.inputs = carve_inputs(carver);
  work.inputs_bytes = carver.used_bytes();
  work.inv_freq = carver.take<float>(config_.head_dim / 2);
  work.cos_sin = carver.take<float>(options_.context_tokens * config_.head_dim);
  work.hidden = rows_of(config_.hidden);
  work.normed = rows_of(config_.hidden);
  work.qkv = rows_of(qkv_width());
  work.attention = rows_of(attended());
  work.gate_up = rows_of(2 * config_.ffn);
  work.activated = rows_of(config_.ffn);
  work.logits = carver.take<float>(rows * config_.vocab);
  work.state = state_of(states);
  work.scratch = state_of(states * kDraftSegmentsPerLaunch);
  return work;
}

LongSpecDraft::PrefillWork LongSpecDraft::carve_staging(Carver& carver) const {
  const int64_t kept = options_.prompt_tokens - first_prompt_row();
  PrefillWork work{};
  work.tokens = carver.take<int32_t>(kept);
  work.positions = carver.take<int32_t>(kept);
  return work;
}

LongSpecDraft::PrefillWork LongSpecDraft::carve_prefill(Carver& carver) const {
  const int64_t kept = options_.prompt_tokens - first_prompt_row(), group = std::min(padded(kept), kPrefillGroupRows);
  const auto rows_of = [&](int64_t width) { return carver.take_bytes(u(group * width) * type_bytes()); };
  PrefillWork work = carve_staging(carver);
  work.hidden = rows_of(config_.hidden);
  work.normed = rows_of(config_.hidden);
  work.qkv = rows_of(qkv_width());
  return work;
}

uint64_t LongSpecDraft::prefill_staging_bytes() const {
  Carver carver(nullptr);
  carve_staging(carver);
  return carver.used_bytes();
}

// What checking the layer's products takes, one kind at a time.
uint64_t LongSpecDraft::product_check_room() const {
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
  add(qkv_width(), config_.hidden, ProductPath::kPrefill, false);
  add(qkv_width(), config_.hidden, ProductPath::kDecode, false);
  add(attended(), config_.hidden, ProductPath::kDecode, false);
  add(config_.hidden, attended(), ProductPath::kDecode, false);
  add(2 * config_.ffn, config_.hidden, ProductPath::kDecode, false);
  add(config_.hidden, config_.ffn, ProductPath::kDecode, false);
  add(config_.vocab, config_.hidden, ProductPath::kDecode, true);
  return most;
}

DraftMemory LongSpecDraft::memory() const {
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

void LongSpecDraft::allocate(Stream& compute) {
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

// The target's own: its keys are rotated with it.
void LongSpecDraft::upload_rope_table() {
  const ModelConfig& target = *target_.config;
  const RopeTable table = make_rope_table(target.rope, target.head_dim, target.max_positions);
  compute_->copy(work_->inv_freq, table.inv_freq.data(), table.inv_freq.size() * sizeof(float), Link::kHostToDevice);
  rope_table({.inv_freq = work_->inv_freq,
              .cos_sin = work_->cos_sin,
              .scale = table.scale,
              .rows = options_.context_tokens,
              .head_dim = config_.head_dim},
             *compute_);
  compute_->synchronize();  // the table's host side goes out of scope
}

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

// Keys and values of the prompt's last rows: one layer, so that no attention is needed for them.
void LongSpecDraft::finish_prefill(std::span<const int32_t> prompt) {
  const int64_t rows = static_cast<int64_t>(prompt.size()), first = first_prompt_row(), kept = rows - first;
  CHECK(rows == options_.prompt_tokens);
  Carver carver(prefill_staging_.data());
  const PrefillWork host = carve_staging(carver);
  for (int64_t i = 0; i < kept; ++i) {
    host.tokens[i] = prompt[static_cast<size_t>(first + i)];
    host.positions[i] = static_cast<int32_t>(first + i);
  }
  const uint64_t list_bytes = u(kept) * sizeof(int32_t);
  compute_->copy(prefill_->tokens, host.tokens, list_bytes, Link::kHostToDevice);
  compute_->copy(prefill_->positions, host.positions, list_bytes, Link::kHostToDevice);
  for (int64_t row = 0; row < kept; row += kPrefillGroupRows) {
    const int64_t count = std::min(kPrefillGroupRows, kept - row);
    enter({.tokens = prefill_->tokens + row,
           .hidden = prefill_->hidden,
           .normed = prefill_->normed,
           .qkv = prefill_->qkv,
           .rows = count,
           .path = ProductPath::kPrefill});
    for (int64_t done = 0; done < count;) {  // the ring may end in the middle
      const DraftCache::Run run = cache_->ring_run(0, first + row + done);
      const int64_t here = std::min(run.rows, count - done);
      std::byte* const qkv = static_cast<std::byte*>(prefill_->qkv) + u(done * qkv_width()) * type_bytes();
      rotate(qkv, prefill_->positions + row + done, here, run.to);
      done += here;
    }
  }
  compute_->synchronize();
  cache_->set_rows(rows, false);
  stable_tokens_.clear();
  prefill_.reset();
  prefill_memory_ = {};
  prefill_staging_ = {};
}

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
