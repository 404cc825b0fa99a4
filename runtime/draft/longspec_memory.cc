// What a LongSpec draft takes: its buffers, sized before anything is allocated, and the prompt's part of its cache.
#include <algorithm>

#include "kernels/elementwise.h"
#include "kernels/product.h"
#include "runtime/draft/draft_attention.h"
#include "runtime/draft/longspec_work.h"

namespace headrace {
namespace {

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

LongSpecDraft::LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                             const LongSpecTarget& target, const LongSpecOptions& options)
    : device_(device),
      config_(config),
      weights_(weights),
      target_(target),
      options_(options),
      shape_(cache_shape(config, weights.dtype(), options)) {}

LongSpecDraft::~LongSpecDraft() = default;

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
  const int64_t kept = options_.prompt_tokens - first_prompt_row(),
                group = std::min(padded(kept), kLongSpecPrefillGroupRows);
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
    params.rows = path == ProductPath::kDecode ? 1 : std::min(options_.prompt_tokens, kLongSpecPrefillGroupRows);
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
  fill_rope_table({.rope = &target.rope,
                   .head_dim = target.head_dim,
                   .max_positions = target.max_positions,
                   .rows = options_.context_tokens,
                   .inv_freq = work_->inv_freq,
                   .cos_sin = work_->cos_sin},
                  *compute_);
}

// ---- prefill --------------------------------------------------------------------------------------------------------

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
  for (int64_t row = 0; row < kept; row += kLongSpecPrefillGroupRows) {
    const int64_t count = std::min(kLongSpecPrefillGroupRows, kept - row);
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

}  // namespace headrace
