#include "runtime/draft/simple.h"

#include <algorithm>

#include "kernels/elementwise.h"
#include "offload/trace.h"
#include "runtime/draft/draft_attention.h"

namespace headrace {
namespace {

constexpr int64_t kChunkRows = 64;  // of the prompt: a group of the decode path's products

uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

int64_t unread_tokens(const DraftSetup& options) {
  if (options.window == 0) return 0;
  return std::max<int64_t>(0, options.prompt_tokens - options.window - kDraftSinkRows);
}

}  // namespace

// What a pass that adds to the cache reads from the host, in one block that is copied once.
struct SimpleDraft::Inputs {
  int32_t *tokens, *positions;            // [chain_rows()]
  int32_t *committed_before, *committed;  // [1]: the cache's rows before and after them
  int32_t *root, *root_position;          // [1], as the target has them
  int32_t* slot_shift;                    // [1]
  int32_t* sink_positions;                // [kDraftSinkRows], after them
  uint64_t changing_bytes;
  int32_t *path, *source;  // [chain_rows(), chain_rows()], [chain_rows()]: of a chain, whatever its length
};

struct SimpleDraft::Work {
  Inputs inputs;
  float *inv_freq, *cos_sin;  // [head_dim / 2], [context, head_dim]
  void* hidden;               // [rows, hidden]
  LayerWork layer;
  float* logits;         // [widest level, vocab]
  std::byte* first_qkv;  // [layers, kDraftSinkRows, qkv width]: the sinks before RoPE; null without a window
  AttentionState state, scratch;
};

SimpleDraft::SimpleDraft(Device& device, const ModelConfig& config, const Weights& weights, const DraftSetup& options)
    : device_(device),
      config_(config),
      weights_(weights),
      options_(options),
      unread_(unread_tokens(options)),
      shape_(cache_shape()) {}

SimpleDraft::~SimpleDraft() = default;

int64_t SimpleDraft::chain_rows() const { return std::max(kChunkRows, stable_rows(options_.tree)); }

// The root's row is in the cache when its children are ranked. Noise goes by the target's positions.
TreeSetup SimpleDraft::tree_setup() const {
  return {.shape = options_.tree,
          .vocab = options_.target_vocab > 0 ? std::min(config_.vocab, options_.target_vocab) : config_.vocab,
          .stride = config_.vocab,
          .map = nullptr,
          .sampling = options_.sampling,
          .position_offset = 1 + unread_,
          .first_row = stable_rows(options_.tree)};
}

// ---- memory ---------------------------------------------------------------------------------------------------------

DraftCacheShape SimpleDraft::cache_shape() const {
  return {.rows = {.layers = config_.layers,
                   .kv_heads = config_.kv_heads,
                   .head_dim = config_.head_dim,
                   .k_type = weights_.dtype(),
                   .v_type = weights_.dtype()},
          .context_rows = options_.context_tokens - unread_,
          .window = options_.window,
          .pass_rows = std::max(round_rows(options_.tree), chain_rows()),
          .most_taken_back = options_.most_pending,
          .sinks = SinkRows::kFollowTheWindow};
}

uint64_t SimpleDraft::type_bytes() const { return dtype_bytes(weights_.dtype()); }
uint64_t SimpleDraft::qkv_row_bytes() const {
  return u((config_.heads + 2 * config_.kv_heads) * config_.head_dim) * type_bytes();
}

SimpleDraft::Inputs SimpleDraft::carve_inputs(Carver& carver) const {
  const int64_t rows = chain_rows();
  const uint64_t before = carver.used_bytes();
  Inputs inputs;
  inputs.tokens = carver.take<int32_t>(rows);
  inputs.positions = carver.take<int32_t>(rows);
  for (int32_t** one :
       {&inputs.committed_before, &inputs.committed, &inputs.root, &inputs.root_position, &inputs.slot_shift}) {
    *one = carver.take<int32_t>(1);
  }
  inputs.sink_positions = carver.take<int32_t>(kDraftSinkRows);
  inputs.changing_bytes = carver.used_bytes() - before;
  inputs.path = carver.take<int32_t>(rows * rows);
  inputs.source = carver.take<int32_t>(rows);
  return inputs;
}

SimpleDraft::Work SimpleDraft::carve(Carver& carver) const {
  const int64_t most = std::max(chain_rows(), options_.tree.widest()), rows = padded(most);
  Work work;
  work.inputs = carve_inputs(carver);
  work.inv_freq = carver.take<float>(config_.head_dim / 2);
  work.cos_sin = carver.take<float>(shape_.context_rows * config_.head_dim);
  work.hidden = carver.take_bytes(u(rows * config_.hidden) * type_bytes());
  std::byte* const layer = carver.take_bytes(layer_work_bytes(config_, weights_.dtype(), rows));
  if (layer != nullptr) work.layer = layer_work(config_, weights_.dtype(), rows, layer);
  work.logits = carver.take<float>(padded(options_.tree.widest()) * config_.vocab);
  work.first_qkv =
      shape_.windowed() ? carver.take_bytes(u(config_.layers * kDraftSinkRows) * qkv_row_bytes()) : nullptr;
  work.state = carve_states(most * config_.heads, config_.head_dim, carver);
  work.scratch = carve_states(most * config_.heads * kDraftSegmentsPerLaunch, config_.head_dim, carver);
  return work;
}

DraftBufferSizes SimpleDraft::buffer_sizes() const {
  Carver work(nullptr), inputs(nullptr);
  carve(work);
  carve_inputs(inputs);
  return {.work = work.used_bytes(), .prefill = 0, .inputs = inputs.used_bytes(), .prefill_inputs = 0};
}

DraftMemory SimpleDraft::memory() const {
  const uint64_t check =
      product_check_bytes(config_, weights_.dtype(), device_.backend(), chain_rows(), ProductPath::kDecode);
  return draft_memory(buffer_sizes(), check, shape_, tree_setup());
}

void SimpleDraft::allocate(Stream& compute) {
  compute_ = &compute;
  buffers_ = DraftBuffers::allocate(device_, buffer_sizes());
  Carver carver(buffers_.work.data()), host_carver(buffers_.inputs.data());
  work_ = std::make_unique<Work>(carve(carver));
  host_ = std::make_unique<Inputs>(carve_inputs(host_carver));
  cache_.emplace(device_, shape_);
  builder_.emplace(device_, tree_setup());
  upload_constants();
}

void SimpleDraft::upload_constants() {
  const int64_t rows = chain_rows();
  for (int64_t i = 0; i < rows; ++i) {
    host_->source[i] = static_cast<int32_t>(i);
    for (int64_t j = 0; j < rows; ++j) host_->path[i * rows + j] = static_cast<int32_t>(j);
  }
  compute_->copy(work_->inputs.path, host_->path, u(rows * rows) * sizeof(int32_t), Link::kHostToDevice);
  compute_->copy(work_->inputs.source, host_->source, u(rows) * sizeof(int32_t), Link::kHostToDevice);
  fill_rope_table({.rope = &config_.rope,
                   .head_dim = config_.head_dim,
                   .max_positions = config_.max_positions,
                   .rows = shape_.context_rows,
                   .inv_freq = work_->inv_freq,
                   .cos_sin = work_->cos_sin},
                  *compute_);
}

// ---- the model ------------------------------------------------------------------------------------------------------

Pass SimpleDraft::make_pass(const int32_t* positions, int64_t rows) const {
  return {.config = &config_,
          .weights = &weights_,
          .work = work_->layer,
          .positions = positions,
          .cos_sin = work_->cos_sin,
          .table_rows = shape_.context_rows,
          .k_type = shape_.rows.k_type,
          .v_type = shape_.rows.v_type,
          .rows = rows,
          .path = ProductPath::kDecode,
          .stream = compute_};
}

// -> work.hidden. Only rows that begin the context are sinks, and they come in chains.
void SimpleDraft::forward(const DraftRows& rows) {
  const Pass pass = make_pass(rows.positions, rows.count);
  embedding({.ids = rows.tokens,
             .table = weights_.embedding(),
             .out = work_->hidden,
             .type = weights_.dtype(),
             .rows = rows.count,
             .vocab = config_.vocab,
             .hidden = config_.hidden},
            *compute_);
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    qkv_product(pass, layer, work_->hidden);
    if (rows.pass_row == 0) remember_sinks(layer, cache_->rows(), rows.count);
    rotate_rows(pass, 0, rows.count, cache_->pass_rows_from(layer, rows.pass_row));
    draft_attention({.layer = layer,
                     .shape = attention_shape(pass),
                     .q = work_->layer.qkv,
                     .positions = rows.positions,
                     .committed = rows.committed,
                     .path = rows.path,
                     .path_stride = rows.path_stride,
                     .deepest = rows.deepest,
                     .state = work_->state,
                     .scratch = work_->scratch,
                     .out = work_->layer.attention},
                    *cache_, &prefix_, *compute_);
    layer_output(pass, layer, work_->hidden);
  }
}

// Rows [first, first + count) of work.hidden -> work.logits from row 0 on.
void SimpleDraft::predict(int64_t first, int64_t count) {
  const std::byte* const hidden = static_cast<std::byte*>(work_->hidden) + u(first * config_.hidden) * type_bytes();
  output_logits(make_pass(nullptr, count), hidden, work_->logits);
}

// Beyond the last token it is repeated.
void SimpleDraft::upload_chain(std::span<const int32_t> tokens, int64_t rows) {
  const int64_t before = cache_->rows(), count = static_cast<int64_t>(tokens.size());
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t row = std::min(i, count - 1);
    const int32_t token = tokens[static_cast<size_t>(row)];
    host_->tokens[i] = token < config_.vocab ? token : 0;  // padding that the target alone has; whatever it said by it
    host_->positions[i] = static_cast<int32_t>(before + row);
  }
  *host_->committed_before = static_cast<int32_t>(before);
  *host_->committed = static_cast<int32_t>(before + count);
  const int64_t first_sink = std::max<int64_t>(0, shape_.first_kept(before + count) - kDraftSinkRows);
  for (int64_t i = 0; i < kDraftSinkRows; ++i) host_->sink_positions[i] = static_cast<int32_t>(first_sink + i);
  compute_->copy_small(work_->inputs.tokens, buffers_.inputs.data(), work_->inputs.changing_bytes, Link::kHostToDevice);
}

// Tokens that follow the cache's rows, one after the other: they join it. Returns the rows that were forwarded, of
// which the last is the last token's: on a GPU, where 64 rows cost what one does, a round's are always as many, so that
// they are the same graph whatever was accepted.
int64_t SimpleDraft::extend(std::span<const int32_t> tokens) {
  const int64_t before = cache_->rows(), count = static_cast<int64_t>(tokens.size());
  CHECK(count > 0 && count <= chain_rows() && before + count <= shape_.context_rows, "rows ", before, " + ", count);
  const bool of_a_round = count <= stable_rows(options_.tree) && before >= kDraftSinkRows;
  const int64_t rows = of_a_round && device_.backend() == Backend::kCuda ? stable_rows(options_.tree) : count;
  upload_chain(tokens, rows);
  const Inputs& in = work_->inputs;
  const DraftRows chain = {.tokens = in.tokens,
                           .positions = in.positions,
                           .path = in.path,
                           .committed = in.committed_before,
                           .count = rows,
                           .path_stride = chain_rows(),
                           .pass_row = 0,
                           .deepest = before + count - 1};
  if (of_a_round) {
    replay_.run(*compute_, {0, rows, shape_.first_kept(before), shape_.prefix_end(chain.deepest)},
                [&] { forward(chain); });
  } else {
    forward(chain);
  }
  cache_->append(in.source, count, *compute_);
  const int64_t kept = shape_.first_kept(before + count);
  if (kept != sinks_before_) place_sinks();
  sinks_before_ = kept;
  return rows;
}

// Keeps what of a pass's rows, the first of which is at `position`, are sinks, as the layer's product gave them.
void SimpleDraft::remember_sinks(int64_t layer, int64_t position, int64_t rows) {
  const int64_t count = std::min(kDraftSinkRows - position, rows);
  if (work_->first_qkv == nullptr || count <= 0) return;
  compute_->copy(work_->first_qkv + u(layer * kDraftSinkRows + position) * qkv_row_bytes(), work_->layer.qkv,
                 u(count) * qkv_row_bytes(), Link::kWithinDevice);
}

// Turns the sinks to the positions right before the window.
void SimpleDraft::place_sinks() {
  const Pass pass = make_pass(work_->inputs.sink_positions, kDraftSinkRows);
  const uint64_t bytes = u(kDraftSinkRows) * qkv_row_bytes();
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    compute_->copy(work_->layer.qkv, work_->first_qkv + u(layer) * bytes, bytes, Link::kWithinDevice);
    rotate_rows(pass, 0, kDraftSinkRows, cache_->sinks(layer));
  }
}

// ---- the loop -------------------------------------------------------------------------------------------------------

bool SimpleDraft::finish_prefill(std::span<const int32_t> prompt, Progress* progress,
                                 const std::atomic<bool>* interrupt) {
  const int64_t tokens = static_cast<int64_t>(prompt.size());
  CHECK(tokens == options_.prompt_tokens, "tokens=", tokens);
  std::vector<int32_t> read(prompt.begin(), prompt.end());
  if (unread_ > 0) read.erase(read.begin() + kDraftSinkRows, read.begin() + kDraftSinkRows + unread_);
  stable_.clear();
  if (progress) progress->begin("draft prefill", "tokens", static_cast<int64_t>(read.size()));
  bool go_on = true;
  for (size_t row = 0; row < read.size() && go_on; row += u(kChunkRows)) {
    const size_t rows = std::min(u(kChunkRows), read.size() - row);
    extend(std::span(read).subspan(row, rows));
    compute_->synchronize();  // the host side of the inputs is written again
    if (progress) progress->update(static_cast<int64_t>(row + rows));
    go_on = interrupt == nullptr || !interrupt->load(std::memory_order_relaxed);
  }
  if (progress) progress->end();
  return go_on;
}

// Two graphs on a GPU, with the commit between them: the rows of what was accepted, then the tree. They change when a
// limit does, or the runs of rows that attention is shown: every 512 positions, with a window every 64.
void SimpleDraft::play_round(int32_t root, int64_t position, const TreeInputs& to) {
  const TraceSpan span(*compute_, "propose");
  stable_.push_back(root);
  *host_->root = root;
  *host_->root_position = static_cast<int32_t>(position);
  *host_->slot_shift = to.slot_shift;
  const int64_t chain = extend(last_chunk()), committed = cache_->rows();
  CHECK(committed + unread_ == position + 1, "rows ", committed, " + ", unread_, " at ", position);
  if (builder_->stops_early()) return grow_tree(chain, to.rows);
  const Replay::Key key = {builder_->key_of(to.rows), chain, shape_.first_kept(committed),
                           shape_.prefix_end(committed + builder_->levels())};
  replay_.run(*compute_, key, [&] { grow_tree(chain, to.rows); });
}

// Behind a chain of so many rows, which are in the cache.
void SimpleDraft::grow_tree(int64_t chain, const TreeRows& to) {
  const Inputs& in = work_->inputs;
  const TreeRoot root = {
      .token = in.root, .position = in.root_position, .committed = in.committed, .slot_shift = in.slot_shift};
  const int64_t deepest = cache_->rows() + builder_->levels();
  predict(chain - 1, 1);
  builder_->grow(0, work_->logits, in.positions + chain - 1, root, *compute_);
  for (int64_t level = 1; level < builder_->levels() && !builder_->stopped(*compute_); ++level) {
    const TreeFrontier& frontier = builder_->frontier();
    const int64_t rows = builder_->rows(level);
    forward({.tokens = frontier.tokens,
             .positions = frontier.positions,
             .path = frontier.path,
             .committed = in.committed,
             .count = rows,
             .path_stride = frontier.path_stride,
             .pass_row = builder_->first_pass_row(level),
             .deepest = deepest});
    predict(0, rows);
    builder_->grow(level, work_->logits, frontier.positions, root, *compute_);
  }
  builder_->select(root, to, *compute_);
}

void SimpleDraft::propose(int32_t root, int64_t position, const TreeLimits& limits, Tree* tree) {
  builder_->begin(limits);
  play_round(root, position, {.rows = builder_->own_rows()});
  builder_->bring(*compute_, tree);
}

ProposedTree SimpleDraft::propose_into(int32_t root, int64_t position, const TreeLimits& limits, const TreeInputs& to) {
  builder_->begin(limits);
  if (builder_->stops_early()) return {};
  play_round(root, position, to);
  return builder_->proposed();
}

// After a refresh there may be more tokens than a chain has room for: the first of them join the cache now.
std::span<const int32_t> SimpleDraft::last_chunk() {
  std::span<const int32_t> tokens = stable_;
  while (static_cast<int64_t>(tokens.size()) > chain_rows()) {
    extend(tokens.first(u(chain_rows())));
    compute_->synchronize();  // the host side of the inputs is written again
    tokens = tokens.subspan(u(chain_rows()));
  }
  return tokens;
}

// The row of the first provisional token, the root of then, is right.
void SimpleDraft::rewind(int64_t position) { cache_->rewind(std::min(position + 1 - unread_, cache_->rows())); }

void SimpleDraft::observe(const Tree& tree, const Acceptance& acceptance) {
  stable_.clear();
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {
    stable_.push_back(tree.tokens[static_cast<size_t>(acceptance.nodes[i])]);
  }
}

}  // namespace headrace
