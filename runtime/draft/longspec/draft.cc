// The LongSpec draft (LongSpec section 3.1): one layer whose self-attention sees a window and whose cross-attention
// sees the target's last layer, so its memory is independent of the context. The keys and values of its self-attention
// depend only on a row's token and position: rows of the prompt and of accepted tokens need no attention before they
// enter the cache.
//     x1 = e + SelfAttn(RMSNorm(e)),  x2 = x1 + CrossAttn(RMSNorm(x1)),  x3 = x2 + MLP(RMSNorm(x2)),  logits = head(x3)
// Reads weights that the engine owns and the session's KV cache.
#include <algorithm>
#include <optional>

#include "kernels/elementwise/op.h"
#include "runtime/draft/attention.h"
#include "runtime/draft/layer.h"
#include "runtime/draft/layer_draft.h"
#include "runtime/draft/layer_draft_model.h"
#include "runtime/draft/longspec/checkpoint.h"
#include "runtime/draft/tokenizer.h"
#include "runtime/draft/weights.h"
#include "runtime/kv/kv_cache.h"

namespace headrace {

// Vectors are of the weights' type; matrices are [out, in].
struct LongSpecViews {
  const void* input_norm = nullptr;  // [hidden]
  Weight qkv;                        // [(heads + 2 kv_heads) * head_dim, hidden]
  const void* qkv_bias = nullptr;    // [(heads + 2 kv_heads) * head_dim]
  Weight output;                     // [hidden, heads * head_dim]
  const void* cross_norm = nullptr;  // [hidden]: after the self-attention
  Weight cross_q;                    // [heads * head_dim, hidden]
  const void* cross_bias = nullptr;  // [heads * head_dim]
  Weight cross_output;               // [hidden, heads * head_dim]
  const void* ffn_norm = nullptr;    // [hidden]: after the cross-attention
  Weight gate_up;                    // [2 * ffn, hidden]
  Weight down;                       // [hidden, ffn]
};
using LongSpecWeights = DraftWeights<LongSpecViews>;

void place_views(const LongSpecCheckpoint& checkpoint, LongSpecViews* views, WeightPlaces* places) {
  LongSpecViews& v = *views;
  const auto tensor = [&](const std::string& name) {
    const TensorInfo* info = checkpoint.find(name);
    CHECK(info != nullptr, name);
    return info;
  };
  places->place(&v.input_norm, {tensor("input_layernorm.weight")});
  places->place(&v.qkv, {tensor("self_attn.q_proj.weight"), tensor("self_attn.k_proj.weight"),
                         tensor("self_attn.v_proj.weight")});
  places->place(&v.qkv_bias,
                {tensor("self_attn.q_proj.bias"), tensor("self_attn.k_proj.bias"), tensor("self_attn.v_proj.bias")});
  places->place(&v.output, {tensor("self_attn.o_proj.weight")});
  places->place(&v.cross_norm, {tensor("post_self_attention_layernorm.weight")});
  places->place(&v.cross_q, {tensor("cross_attn.q_proj.weight")});
  places->place(&v.cross_bias, {tensor("cross_attn.q_proj.bias")});
  places->place(&v.cross_output, {tensor("cross_attn.o_proj.weight")});
  places->place(&v.ffn_norm, {tensor("post_cross_attention_layernorm.weight")});
  places->place(&v.gate_up, {tensor("mlp.gate_proj.weight"), tensor("mlp.up_proj.weight")});
  places->place(&v.down, {tensor("mlp.down_proj.weight")});
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
  struct Entered {
    void *hidden, *normed, *qkv;  // [rows, hidden], [rows, hidden], [rows, qkv_width()]
  };
  struct Work {
    void* hidden;  // [rows, hidden]
    DraftLayerWork layer;
  };

  int64_t queries() const { return most_rows(stable_rows(options_.tree)); }                   // most of a forward
  int64_t first_prompt_row() const { return shape_.first_kept(options_.run.prompt_tokens); }  // in the window
  // More inputs of a round: for each query the last position of the target's cache; the rows to commit.
  int32_t* before(const Inputs& in) const { return in.more; }
  int32_t* source(const Inputs& in) const { return in.more + queries(); }

  void carve(Buffers* buffers) override;
  uint64_t product_bytes() const override;
  void begin() override;
  Round catch_up(int32_t root, int64_t position) override;
  const float* forward_root(const Round& round) override;
  const float* cos_sin() const override { return work_.layer.rope.cos_sin; }
  const float* forward_level(const Round& round, int64_t level, const DraftRows& rows) override;

  // Computes the keys and values of the self-attention from tokens, and the input of its queries.
  void enter(const int32_t* tokens, const Entered& to, int64_t rows, ProductPath path);
  void attend_target(const DraftRows& rows);
  const float* finish_layer(const DraftRows& rows);  // from work_.hidden and qkv to logits
  void embed(const int32_t* tokens, const int32_t* positions, int64_t rows, int64_t pass_row);
  void join_early_tokens();

  const LongSpecConfig& config_;
  const LongSpecWeights& weights_;
  const DraftTarget target_;
  const DraftLayerSizes sizes_;
  Work work_{};
  Entered prefill_{};  // of one group of the prompt's rows in the window
  std::optional<DraftLayer> layer_;
};

// A row at position p predicts the token at p + 1. The root's row is committed before the tree is grown. Sinks are
// dropped: the layer was trained without them.
LongSpecDraft::LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                             const DraftTarget& target, const DraftSetup& options)
    : LayerDraft(device, options,
                 {.rows = DraftLayerSizes::of(config, weights.dtype()).cache_rows(),
                  .context_rows = options.run.context_tokens,
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
      target_(target),
      sizes_(DraftLayerSizes::of(config, weights.dtype())) {
  plan();
}

void LongSpecDraft::carve(Buffers* buffers) {
  const int64_t stable = stable_rows(options_.tree), rows = padded(queries());
  carve_inputs(stable, queries() + stable, buffers);
  work_.hidden = buffers->work.take_bytes(sizes_.bytes(rows * config_.hidden));
  work_.layer = DraftLayerWork::carve(sizes_, rows, queries(), options_.run.context_tokens, buffers->work);
  const int64_t kept = most_prompt_rows(options_, shape_, first_prompt_row());
  const int64_t group = std::min(padded(kept), kDraftPrefillGroupRows);
  carve_prompt(kept, buffers);
  prefill_.hidden = buffers->prefill.take_bytes(sizes_.bytes(group * config_.hidden));
  prefill_.normed = buffers->prefill.take_bytes(sizes_.bytes(group * config_.hidden));
  prefill_.qkv = buffers->prefill.take_bytes(sizes_.bytes(group * sizes_.qkv_width()));
}

uint64_t LongSpecDraft::product_bytes() const {
  const int64_t hidden = config_.hidden, qkv = sizes_.qkv_width();
  const ProductPlace place = product_place(device_.backend(), device_.threads(), weights_.keeps_blocks());
  return DraftLayer::product_bytes(place, sizes_, options_.planned_tokens(),
                                   {{.n = qkv, .k = hidden},
                                    {.n = qkv, .k = hidden, .path = ProductPath::kPrefill},
                                    {.n = sizes_.attended(), .k = hidden}});
}

void LongSpecDraft::begin() {
  layer_.emplace(sizes_, work_.layer, options_.run.context_tokens, *compute_);
  layer_->fill_rope(target_.config->rope, target_.config->max_positions);  // its keys use this RoPE
}

// Keys and values of the prompt's last rows: with a single layer they need no attention.
bool LongSpecDraft::finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) {
  const int64_t rows = static_cast<int64_t>(prompt.size()), first = first_prompt_row(), kept = rows - first;
  CHECK(rows == options_.run.prompt_tokens);
  upload_prompt(prompt, 0, first, kept);
  for (int64_t row = 0; row < kept; row += kDraftPrefillGroupRows) {
    const int64_t count = std::min(kDraftPrefillGroupRows, kept - row);
    enter(prompt_.tokens + row, prefill_, count, ProductPath::kPrefill);
    layer_->rotate_into(*cache_, prefill_.qkv, prompt_.positions + row, first + row, count);
  }
  end_prefill(rows, false);
  return true;
}

// ---- the layer ------------------------------------------------------------------------------------------------------

void LongSpecDraft::enter(const int32_t* tokens, const Entered& to, int64_t rows, ProductPath path) {
  const LongSpecViews& w = weights_.views();
  embed_tokens(target_.weights->embedding(),
               {.ids = tokens, .rows = rows, .type = weights_.dtype(), .out_type = weights_.dtype(), .out = to.hidden},
               *compute_);
  layer_->normalise(to.hidden, w.input_norm, to.normed, rows);
  layer_->multiply({.x = to.normed,
                    .w = w.qkv,
                    .bias = w.qkv_bias,
                    .out = to.qkv,
                    .rows = rows,
                    .n = sizes_.qkv_width(),
                    .k = config_.hidden,
                    .path = path});
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
  prefix.out = work_.layer.attention;
  std::vector<KvSegment> segments;
  for (int64_t i = 0; i < segments_for(end); ++i) segments.push_back(cache.resident_segment(last, i));
  draft_prefix_attention(prefix, segments, *compute_);
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
  enter(tokens, {work_.hidden, work_.layer.normed, work_.layer.qkv}, rows, ProductPath::kDecode);
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
