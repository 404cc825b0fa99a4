// The LongSpec draft (LongSpec section 3.1): one layer whose self-attention sees a window and whose cross-attention
// sees the target's last layer, so its memory is independent of the context. The keys and values of its self-attention
// depend only on a row's token and position: rows of the prompt and of accepted tokens need no attention before they
// enter the cache.
//     x1 = e + SelfAttn(RMSNorm(e)),  x2 = x1 + CrossAttn(RMSNorm(x1)),  x3 = x2 + MLP(RMSNorm(x2)),  logits = head(x3)
// Reads weights that the engine owns and the sequence's KV cache.
#include <algorithm>

#include "runtime/draft/layer_draft.h"
#include "runtime/draft/layer_draft_model.h"
#include "runtime/draft/longspec/checkpoint.h"
#include "runtime/draft/tokenizer.h"
#include "runtime/draft/weights.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {

// The layer as two: one ends after the self-attention; the other, which makes no keys and values, has the
// cross-attention and the MLP.
struct LongSpecViews {
  LayerWeights self, cross;
};
using LongSpecWeights = DraftWeights<LongSpecViews>;

void place_views(const LongSpecCheckpoint& checkpoint, LongSpecViews* views, WeightPlaces* places) {
  LayerWeights &self = views->self, &cross = views->cross;
  self.spec = cross.spec = checkpoint.config().layer();
  cross.spec.attention().kv_heads = 0;
  const auto tensor = [&](const std::string& name) {
    const TensorInfo* info = checkpoint.find(name);
    CHECK(info != nullptr, name);
    return info;
  };
  places->place(&self.input_norm, {tensor("input_layernorm.weight")});
  places->place(&self.qkv, {tensor("self_attn.q_proj.weight"), tensor("self_attn.k_proj.weight"),
                            tensor("self_attn.v_proj.weight")});
  places->place(&self.qkv_bias,
                {tensor("self_attn.q_proj.bias"), tensor("self_attn.k_proj.bias"), tensor("self_attn.v_proj.bias")});
  places->place(&self.output, {tensor("self_attn.o_proj.weight")});
  places->place(&cross.input_norm, {tensor("post_self_attention_layernorm.weight")});
  places->place(&cross.qkv, {tensor("cross_attn.q_proj.weight")});
  places->place(&cross.qkv_bias, {tensor("cross_attn.q_proj.bias")});
  places->place(&cross.output, {tensor("cross_attn.o_proj.weight")});
  places->place(&cross.ffn_norm, {tensor("post_cross_attention_layernorm.weight")});
  places->place(&cross.gate_up, {tensor("mlp.gate_proj.weight"), tensor("mlp.up_proj.weight")});
  places->place(&cross.down, {tensor("mlp.down_proj.weight")});
}

namespace {

class LongSpecDraft final : public LayerDraft {
 public:
  // All must outlive the draft. The target, whose RoPE, embedding and head it uses, may be loaded later, but before
  // prefill.
  LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights, const DraftTarget& target,
                const DraftSetup& options);

  bool reads_last_layer() const override { return true; }
  bool finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) override;
  void rewind(int64_t position) override;

 private:
  int64_t queries() const { return most_rows(stable_rows(options_.tree)); }                   // most of a forward
  int64_t first_prompt_row() const { return shape_.first_kept(options_.run.prompt_tokens); }  // in the window
  // More inputs of a round: for each query the last position of the target's cache; the rows to commit.
  int32_t* before(const Inputs& in) const { return in.more; }
  int32_t* source(const Inputs& in) const { return in.more + queries(); }

  void carve(Buffers* buffers) override;
  Round catch_up(int32_t root, int64_t position) override;
  const float* forward_root(const Round& round) override;
  const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) override;

  // tokens -> hidden, and the self-attention's input, pass.work.qkv.
  void enter(const Pass& pass, const int32_t* tokens, void* hidden);
  void attend_target(const Pass& pass, const DraftRows& rows);
  const float* finish_layer(const DraftRows& rows);  // from hidden_ and qkv to logits
  void embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row);
  void join_early_tokens();

  const LongSpecConfig& config_;
  const LongSpecWeights& weights_;
  const DraftTarget target_;
  void* hidden_ = nullptr;  // [rows, hidden]
  // Of one group of the prompt's rows in the window.
  struct {
    void* hidden = nullptr;  // [group, hidden]
    LayerWork layer;         // only normed and qkv
  } prefill_;
};

DraftDecoder decoder_of(const LongSpecConfig& config, const LongSpecWeights& weights, const ModelConfig& target) {
  const DType type = weights.dtype();
  const LayerSpec layer = config.layer();
  return {.layers = {layer},
          .hidden = config.hidden,
          .logits = config.vocab,
          .type = type,
          .hidden_type = type,
          .keeps_blocks = weights.keeps_blocks(),
          .rms_eps = config.rms_eps,
          .rope = &target.rope,  // which the target's keys have
          .max_positions = target.max_positions,
          .products = {{layer.attention().q_width(), config.hidden, type}},
          .prompt_products = {{layer.attention().qkv_width(), config.hidden, type}}};
}

// A row at position p predicts the token at p + 1. The root's row is committed before the tree is grown. Sinks are
// dropped: the layer was trained without them.
LongSpecDraft::LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                             const DraftTarget& target, const DraftSetup& options)
    : LayerDraft(device, options, decoder_of(config, weights, *target.config),
                 {.context_rows = options.run.context_tokens,
                  .window = options.window,
                  .pass_rows = round_rows(options.tree),
                  .most_taken_back = options.run.most_pending,
                  .sinks = SinkRows::kGo},
                 {.shape = options.tree,
                  .vocab = config.vocab,
                  .sampling = options.run.sampling,
                  .position_offset = 1,
                  .first_row = stable_rows(options.tree)},
                 config.vocab),
      config_(config),
      weights_(weights),
      target_(target) {
  plan();
}

void LongSpecDraft::carve(Buffers* buffers) {
  const int64_t stable = stable_rows(options_.tree), rows = padded(queries());
  carve_inputs(stable, queries() + stable, buffers);
  const auto rows_of = [&](BumpAllocator& allocator, int64_t count, int64_t width) -> void* {
    return allocator.take_bytes(static_cast<uint64_t>(count * width) * dtype_bytes(decoder_.type));
  };
  hidden_ = rows_of(buffers->work, rows, config_.hidden);
  carve_layers(rows, queries(), rows, buffers);
  const int64_t kept = most_prompt_rows(options_, shape_, first_prompt_row());
  const int64_t group = std::min(padded(kept), kDraftPrefillGroupRows);
  carve_prompt(kept, buffers);
  prefill_.hidden = rows_of(buffers->prefill, group, config_.hidden);
  prefill_.layer.normed = rows_of(buffers->prefill, group, config_.hidden);
  prefill_.layer.qkv = rows_of(buffers->prefill, group, decoder_.layers.front().attention().qkv_width());
}

// Keys and values of the prompt's last rows: with a single layer they need no attention.
bool LongSpecDraft::finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) {
  const int64_t rows = static_cast<int64_t>(prompt.size()), first = first_prompt_row(), kept = rows - first;
  CHECK(rows == options_.run.prompt_tokens);
  upload_prompt(prompt, 0, first, kept);
  for (int64_t row = 0; row < kept; row += kDraftPrefillGroupRows) {
    const int64_t count = std::min(kDraftPrefillGroupRows, kept - row);
    const Pass pass = prompt_pass(prefill_.layer, prompt_.positions + row, count);
    enter(pass, prompt_.tokens + row, prefill_.hidden);
    rotate_into_ring(pass, weights_.views().self, first + row);
  }
  end_prefill(rows, false);
  return true;
}

// ---- the layer ------------------------------------------------------------------------------------------------------

void LongSpecDraft::enter(const Pass& pass, const int32_t* tokens, void* hidden) {
  embed_tokens(target_.weights->embedding(),
               {.ids = tokens, .rows = pass.rows, .type = pass.type, .out_type = pass.type, .out = hidden}, *compute_);
  qkv_product(pass, weights_.views().self, hidden);
}

// Every row sees all rows that the target has committed, and none of the tree, which the target has not computed. A
// query at the last committed position sees exactly those.
void LongSpecDraft::attend_target(const Pass& pass, const DraftRows& rows) {
  const KvCache& cache = *target_cache_;
  const int64_t last = cache.shape().layers - 1, end = tail_begin(cache.rows() + cache.pending_rows() - 1);
  const RecentRows::Views tail = cache.recent().views(last);
  const RowShape exact = cache.shape().exact();
  AttentionShape shape = attention_shape(pass, weights_.views().cross.spec.attention());
  shape.kv_heads = config_.kv_heads;
  shape.k_type = exact.k_type;
  shape.v_type = exact.v_type;
  PrefixAttentionParams prefix =
      attend_tail({.shape = shape,
                   .q = pass.work.qkv,
                   .positions = before(inputs_),
                   .committed = inputs_.root_position,
                   .path = rows.path,
                   .path_stride = rows.path_stride,
                   .state = layers_.state,
                   .scratch = layers_.scratch},
                  {tail.ring_k, tail.ring_v, tail.pass_k, tail.pass_v, kTailRingRows, 1}, *compute_);
  prefix.shape.k_type = cache.shape().k_type;
  prefix.shape.v_type = cache.shape().v_type;
  std::vector<KvSegment> segments;
  for (int64_t i = 0; i < segments_for(end); ++i) segments.push_back(cache.resident_segment(last, i));
  fold_prefix(prefix, segments, pass.work.attention);
}

const float* LongSpecDraft::finish_layer(const DraftRows& rows) {
  const auto& [self, cross] = weights_.views();
  const Pass pass = make_pass(rows.positions, rows.count);
  attend(pass, 0, self, rows);
  attention_output(pass, self, hidden_, hidden_);
  qkv_product(pass, cross, hidden_);
  rotate_rows(pass, cross, 0, rows.count, {});
  attend_target(pass, rows);
  layer_output(pass, cross, hidden_);
  output_logits(pass, nullptr, target_.weights->head(), hidden_, layers_.logits);
  return layers_.logits;
}

// ---- the round ------------------------------------------------------------------------------------------------------

// Tokens to hidden_ and qkv; keys and values to the rows of the round.
void LongSpecDraft::embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row) {
  const Pass pass = make_pass(positions, rows);
  enter(pass, tokens, hidden_);
  rotate_rows(pass, weights_.views().self, 0, rows, cache_->pass_rows_from(0, pass_row));
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

class LongSpecModel final : public LayerDraftModel<LongSpecCheckpoint, LongSpecWeights> {
 public:
  LongSpecModel(const DraftOptions& options, const TreeShape& tree, Device& device, const DraftTarget& target)
      // Never quantised: its products of a whole prompt read plain weights.
      : LayerDraftModel(options, tree, device, open_longspec(options.model, *target.config), {target.weights->dtype()}),
        target_(target),
        window_(options.window >= 0 ? options.window : checkpoint_->config().window) {
    if (target.tokenizer != nullptr) check_tokenizer_in(checkpoint_->path(), *target.tokenizer);
  }

  DraftWindow window(const DraftRun&) const override { return {.rows = window_}; }
  std::unique_ptr<Draft> start(const DraftRun& run) override {
    return std::make_unique<LongSpecDraft>(device_, checkpoint_->config(), weights_, target_,
                                           setup_of(run, *target_.config));
  }

 private:
  const DraftTarget target_;
  const int64_t window_;
};

}  // namespace

std::unique_ptr<DraftModel> open_longspec_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                                const DraftTarget& target) {
  return std::make_unique<LongSpecModel>(options, tree, device, target);
}

}  // namespace headrace
