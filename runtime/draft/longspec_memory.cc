// What a LongSpec draft takes: its buffers, sized before anything is allocated, and the prompt's part of its cache.
#include <algorithm>

#include "runtime/draft/longspec_work.h"

namespace headrace {

LongSpecDraft::LongSpecDraft(Device& device, const LongSpecConfig& config, const LongSpecWeights& weights,
                             const LongSpecTarget& target, const DraftSetup& options)
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
             .most_taken_back = options.most_pending,
             .sinks = SinkRows::kGo} {}  // it was trained without them

LongSpecDraft::~LongSpecDraft() = default;

// A row at position p predicts the token at p + 1. The root's row is committed before the tree is grown.
TreeSetup LongSpecDraft::tree_setup() const {
  return {.shape = options_.tree,
          .vocab = config_.vocab,
          .map = nullptr,
          .sampling = options_.sampling,
          .position_offset = 1,
          .first_row = stable_rows(options_.tree)};
}

int64_t LongSpecDraft::most_rows() const { return std::max(stable_rows(options_.tree), options_.tree.widest()); }
int64_t LongSpecDraft::first_prompt_row() const { return shape_.first_kept(options_.prompt_tokens); }

LongSpecDraft::Inputs LongSpecDraft::carve_inputs(Carver& carver) const {
  Inputs inputs;
  for (int32_t** list : {&inputs.tokens, &inputs.positions, &inputs.source}) {
    *list = carver.take<int32_t>(stable_rows(options_.tree));
  }
  inputs.before = carver.take<int32_t>(most_rows());
  for (int32_t** one : {&inputs.root_position, &inputs.committed, &inputs.slot_shift}) *one = carver.take<int32_t>(1);
  return inputs;
}

LongSpecDraft::Work LongSpecDraft::carve(Carver& carver) const {
  const int64_t rows = padded(most_rows());
  Work work;
  work.inputs = carve_inputs(carver);
  work.inputs_bytes = carver.used_bytes();
  work.hidden = carver.take_bytes(sizes_.bytes(rows * config_.hidden));
  work.layer = DraftLayerWork::carve(sizes_, rows, most_rows(), options_.context_tokens, carver);
  return work;
}

LongSpecDraft::PrefillWork LongSpecDraft::carve_prefill(Carver& carver) const {
  const int64_t kept = options_.prompt_tokens - first_prompt_row();
  const int64_t group = std::min(padded(kept), kDraftPrefillGroupRows);
  const auto rows_of = [&](int64_t width) { return carver.take_bytes(sizes_.bytes(group * width)); };
  PrefillWork work;
  work.rows = PromptRows::carve(kept, carver);
  work.hidden = rows_of(config_.hidden);
  work.normed = rows_of(config_.hidden);
  work.qkv = rows_of(sizes_.qkv_width());
  return work;
}

uint64_t LongSpecDraft::product_check_bytes() const {
  const int64_t hidden = config_.hidden, qkv = sizes_.qkv_width();
  return DraftLayer::check_bytes(device_.backend(), sizes_, options_.prompt_tokens,
                                 {{.n = qkv, .k = hidden},
                                  {.n = qkv, .k = hidden, .path = ProductPath::kPrefill},
                                  {.n = sizes_.attended(), .k = hidden}});
}

DraftBufferSizes LongSpecDraft::buffer_sizes() const {
  Carver work(nullptr), prefill(nullptr), inputs(nullptr), lists(nullptr);
  carve(work);
  carve_prefill(prefill);
  carve_inputs(inputs);
  PromptRows::carve(options_.prompt_tokens - first_prompt_row(), lists);
  return {.work = work.used_bytes(),
          .prefill = prefill.used_bytes(),
          .inputs = inputs.used_bytes(),
          .prefill_inputs = lists.used_bytes()};
}

DraftMemory LongSpecDraft::memory() const {
  return draft_memory(buffer_sizes(), product_check_bytes(), shape_, tree_setup());
}

void LongSpecDraft::allocate(Stream& compute) {
  compute_ = &compute;
  buffers_ = DraftBuffers::allocate(device_, buffer_sizes());
  Carver carver(buffers_.work.data()), prefill(buffers_.prefill.data()), inputs(buffers_.inputs.data());
  work_ = std::make_unique<Work>(carve(carver));
  prefill_ = std::make_unique<PrefillWork>(carve_prefill(prefill));
  host_ = std::make_unique<Inputs>(carve_inputs(inputs));
  cache_.emplace(device_, shape_);
  builder_.emplace(device_, tree_setup());
  layer_.emplace(sizes_, work_->layer, options_.context_tokens, compute);
  layer_->fill_rope(target_.config->rope, target_.config->max_positions);  // its keys are rotated so
}

// ---- prefill --------------------------------------------------------------------------------------------------------

// Keys and values of the prompt's last rows: one layer, so that no attention is needed for them.
bool LongSpecDraft::finish_prefill(std::span<const int32_t> prompt, Progress*, const std::atomic<bool>*) {
  const int64_t rows = static_cast<int64_t>(prompt.size()), first = first_prompt_row(), kept = rows - first;
  CHECK(rows == options_.prompt_tokens);
  Carver carver(buffers_.prefill_inputs.data());
  const PromptRows host = PromptRows::carve(kept, carver);
  for (int64_t i = 0; i < kept; ++i) {
    host.tokens[i] = prompt[static_cast<size_t>(first + i)];
    host.positions[i] = static_cast<int32_t>(first + i);
  }
  compute_->copy(prefill_->rows.tokens, host.tokens, host.bytes, Link::kHostToDevice);
  for (int64_t row = 0; row < kept; row += kDraftPrefillGroupRows) {
    const int64_t count = std::min(kDraftPrefillGroupRows, kept - row);
    enter({.tokens = prefill_->rows.tokens + row,
           .hidden = prefill_->hidden,
           .normed = prefill_->normed,
           .qkv = prefill_->qkv,
           .rows = count,
           .path = ProductPath::kPrefill});
    layer_->rotate_into(*cache_, prefill_->qkv, prefill_->rows.positions + row, first + row, count);
  }
  compute_->synchronize();
  cache_->set_rows(rows, false);
  stable_tokens_.clear();
  prefill_.reset();
  buffers_.end_prefill();
  return true;
}

}  // namespace headrace
