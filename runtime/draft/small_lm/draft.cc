#include "runtime/draft/small_lm/draft.h"

#include <algorithm>

#include "runtime/base/unsigned.h"

namespace headrace {
namespace {

constexpr int64_t kChunkRows = 64;  // of the prompt: one group of decode products

int64_t unread_tokens(const DraftSetup& options) {
  if (options.window == 0 || options.retrieval.shape.chunks > 0) return 0;
  return std::max<int64_t>(0, options.run.prompt_tokens - options.window - kDraftSinkRows);
}

int64_t most_chain_rows(const DraftSetup& options) { return std::max(kChunkRows, stable_rows(options.tree)); }

DraftDecoder decoder_of(const ModelConfig& config, const Weights& weights) {
  return {.layers = config.layers,
          .hidden = config.hidden,
          .logits = config.vocab,
          .type = weights.dtype(),
          .hidden_type = DType::kF32,
          .keeps_blocks = weights.keeps_blocks(),
          .rms_eps = config.rms_eps,
          .rope = &config.rope,
          .max_positions = config.max_positions};
}

DraftCacheShape cache_shape(const DraftSetup& options) {
  return {.context_rows = options.run.context_tokens - (options.shares() ? 0 : unread_tokens(options)),
          .window = options.window,
          .pass_rows = std::max(round_rows(options.tree), most_chain_rows(options)),
          .most_taken_back = options.run.most_pending,
          .sinks = SinkRows::kFollowTheWindow,
          .chosen_rows = options.retrieval.shape.placed_rows()};
}

}  // namespace

// The root's row is in the cache when its children are ranked. Noise uses the target's positions.
SimpleDraft::SimpleDraft(Device& device, const ModelConfig& config, const Weights& weights, const DraftSetup& options)
    : LayerDraft(device, options, decoder_of(config, weights), cache_shape(options),
                 {.shape = options.tree,
                  .vocab = options.target_vocab > 0 ? std::min(config.vocab, options.target_vocab) : config.vocab,
                  .stride = config.vocab,
                  .sampling = options.run.sampling,
                  .position_offset = 1 + unread_tokens(options),
                  .first_row = stable_rows(options.tree)},
                 config.vocab),
      config_(config),
      weights_(weights),
      unread_(unread_tokens(options)) {
  plan();
}

// ---- memory ---------------------------------------------------------------------------------------------------------

int64_t SimpleDraft::chain_rows() const { return most_chain_rows(options_); }
void SimpleDraft::carve(Buffers* buffers) {
  const int64_t most = most_rows(chain_rows()), rows = padded(most);
  carve_inputs(chain_rows(), 0, buffers);
  hidden_ = buffers->work.take<float>(rows * config_.hidden);
  carve_layers(rows, most, padded(options_.tree.widest()), buffers);
}

// ---- the model ------------------------------------------------------------------------------------------------------

// -> hidden_.
void SimpleDraft::forward(const DraftRows& rows) {
  const Pass pass = make_pass(rows.positions, rows.count);
  embed_tokens(
      weights_.embedding(),
      {.ids = rows.tokens, .rows = rows.count, .type = weights_.dtype(), .out_type = DType::kF32, .out = hidden_},
      *compute_);
  for (int64_t layer = 0; layer < config_.layer_count(); ++layer) {
    const LayerWeights& weights = weights_.layer(layer);
    qkv_product(pass, weights, hidden_);
    rotate_rows(pass, weights, 0, rows.count, cache_->pass_rows_from(layer, rows.pass_row));
    attend(pass, layer, weights, rows);
    layer_output(pass, weights, hidden_);
  }
}

// Rows [first, first + count) of hidden_ -> layers_.logits from row 0 on.
const float* SimpleDraft::predict(int64_t first, int64_t count) {
  output_logits(make_pass(nullptr, count), weights_, hidden_ + first * config_.hidden, layers_.logits);
  return layers_.logits;
}

// Appends tokens to the cache. Returns the number of forwarded rows, the last of which belongs to the last token: on a
// GPU, where 64 rows cost as much as one, a round has a constant number, so it is the same graph whatever was accepted.
int64_t SimpleDraft::extend(std::span<const int32_t> tokens) {
  const int64_t before = cache_->rows(), count = static_cast<int64_t>(tokens.size());
  CHECK(count > 0 && count <= chain_rows() && before + count <= shape_.context_rows, "rows ", before, " + ", count);
  const bool of_a_round = count <= stable_rows(options_.tree) && before >= kDraftSinkRows;
  const int64_t rows = of_a_round && device_.backend() == Backend::kCuda ? stable_rows(options_.tree) : count;
  place_rows_before_window();
  upload_chain(tokens, rows);
  const Inputs& in = inputs_;
  const DraftRows chain = {.tokens = in.tokens,
                           .positions = in.positions,
                           .path = in.path,
                           .committed = in.committed_before,
                           .count = rows,
                           .path_stride = chain_rows(),
                           .pass_row = 0,
                           .deepest = before + count - 1};
  if (of_a_round) {
    replay_.run(*compute_, {0, rows, prefix_key(), shape_.prefix_end(chain.deepest)}, [&] { forward(chain); });
  } else {
    forward(chain);
  }
  cache_->append(in.order, count, *compute_);
  place_rows_before_window();
  return rows;
}

// ---- the round ------------------------------------------------------------------------------------------------------

bool SimpleDraft::finish_prefill(std::span<const int32_t> prompt, Progress* progress,
                                 const std::atomic<bool>* interrupt) {
  const int64_t tokens = static_cast<int64_t>(prompt.size());
  CHECK(tokens == options_.run.prompt_tokens, "tokens=", tokens);
  std::vector<int32_t> read(prompt.begin(), prompt.end());
  if (unread_ > 0) read.erase(read.begin() + kDraftSinkRows, read.begin() + kDraftSinkRows + unread_);
  stable_tokens_.clear();
  if (progress) progress->begin("draft prefill", "tokens", static_cast<int64_t>(read.size()));
  bool go_on = true;
  for (size_t row = 0; row < read.size() && go_on; row += u(kChunkRows)) {
    const size_t rows = std::min(u(kChunkRows), read.size() - row);
    extend(std::span(read).subspan(row, rows));
    compute_->synchronize();  // the host side of the inputs is overwritten
    if (progress) progress->update(static_cast<int64_t>(row + rows));
    go_on = interrupt == nullptr || !interrupt->load(std::memory_order_relaxed);
  }
  if (progress) progress->end();
  return go_on;
}

LayerDraft::Round SimpleDraft::catch_up(int32_t root, int64_t position) {
  stable_tokens_.push_back(root);
  const int64_t room = chain_rows();
  while (static_cast<int64_t>(stable_tokens_.size()) > room) {  // after a refresh: the first ones join the cache now
    extend(std::span(stable_tokens_).first(u(room)));
    forget_stable(room);
  }
  const int64_t chain = extend(stable_tokens_), committed = cache_->rows();
  CHECK(committed + unread_ == position + 1, "rows ", committed, " + ", unread_, " at ", position);
  return {.row = chain - 1, .key = chain, .deepest = committed + builder_->levels()};
}

const float* SimpleDraft::forward_level(const Round&, int64_t, const DraftRows& rows) {
  forward(rows);
  return predict(0, rows.count);
}

// The row of the first provisional token, the root at that time, is correct.
void SimpleDraft::rewind(int64_t position) { cache_->rewind(std::min(position + 1 - unread_, cache_->rows())); }

}  // namespace headrace
