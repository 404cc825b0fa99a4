#include "runtime/session/buffers.h"

#include <algorithm>

#include "kernels/elementwise/op.h"

namespace headrace {

void SessionBuffers::allocate() {
  Device& device = layout_.device();
  BumpAllocator size(nullptr), later(nullptr), host_size(nullptr);
  layout_.carve_step(size, later);
  layout_.carve_inputs(host_size);
  step_memory_ = device.allocate(size.used_bytes(), "the buffers of a step");
  host_inputs_memory_ = device.allocate_pinned(host_size.used_bytes(), "the inputs of a step");
  host_results_ = device.allocate_pinned(layout_.result_bytes(), "the result of a step");
  if (layout_.options().grow_rows > 0) host_ranked_ = device.allocate_pinned(layout_.ranked_bytes(), "ranked tokens");
  if (layout_.top_tokens() > 0) {
    host_log_probs_memory_ = device.allocate_pinned(layout_.log_probs_bytes(), "log-probabilities");
    BumpAllocator block(host_log_probs_memory_.data());
    host_log_probs_ = StepLogProbs::carve(block, layout_.pass_rows(), layout_.top_tokens());
  }
  BumpAllocator allocator(step_memory_.data()), none(nullptr), inputs(host_inputs_memory_.data()),
      results(host_results_.data());
  step_ = layout_.carve_step(allocator, none);
  host_ = layout_.carve_inputs(inputs);
  host_result_ = layout_.carve_result(results);
  const ModelConfig& config = layout_.config();
  step_.rope.fill(config.rope, config.rope_sizes(), layout_.compute());
  if (config.local_rope) step_.local_rope.fill(*config.local_rope, config.rope_sizes(true), layout_.compute());
}

void SessionBuffers::allocate_passes() {
  BumpAllocator size(nullptr), later_size(nullptr);
  layout_.carve_step(size, later_size);
  pass_memory_ = layout_.device().allocate(later_size.used_bytes(), "the buffers of a pass");
  BumpAllocator allocator(step_memory_.data()), later(pass_memory_.data());
  step_ = layout_.carve_step(allocator, later);
}

const int32_t* SessionBuffers::host_tree_tokens() const {
  return reinterpret_cast<const int32_t*>(host_results_.data() + StepResult::bytes(layout_.pass_rows()));
}

Pass SessionBuffers::make_pass(const LayerWork& work, const int32_t* positions, int64_t rows, ProductPath path) const {
  const RowShape exact = layout_.shape().exact();
  const DType type = layout_.weights().dtype();
  return {.work = work,
          .positions = positions,
          .rope = step_.rope,
          .local_rope = step_.local_rope,
          .type = type,
          .k_type = exact.k_type,
          .v_type = exact.v_type,
          .hidden_type = path == ProductPath::kDecode ? DType::kF32 : type,
          .eps = static_cast<float>(layout_.config().rms_eps),
          .rows = rows,
          .path = path,
          .stream = &layout_.compute()};
}

void SessionBuffers::keep_key_norm(const StatePlace& layer, const LayerWeights& weights) const {
  if (step_.key_norms == nullptr || layer.group != StateGroup::kRows || !layer.own) return;
  const KeyMaker kept = key_maker(layer.place);
  layout_.compute().copy(const_cast<void*>(kept.weight), weights.k_norm,
                         static_cast<uint64_t>(layout_.shape().head_dim) * dtype_bytes(kept.weight_type),
                         Link::kWithinDevice, "norm of keys");
}

KeyMaker SessionBuffers::key_maker(int64_t layer) const {
  const DType type = layout_.weights().dtype();
  if (step_.key_norms == nullptr) return {};
  return {.weight = step_.key_norms + static_cast<uint64_t>(layer * layout_.shape().head_dim) * dtype_bytes(type),
          .weight_type = type,
          .cos_sin = step_.rope.cos_sin,
          .table_rows = step_.rope.rows};
}

void SessionBuffers::upload_inputs(uint64_t bytes) const {
  layout_.compute().copy_small(step_.inputs.tokens, host_inputs_memory_.data(), bytes, Link::kHostToDevice, "inputs");
}

const int32_t* SessionBuffers::upload_source(std::span<const int32_t> rows) const {
  std::copy(rows.begin(), rows.end(), host_.source);
  layout_.compute().copy_small(step_.inputs.source, host_.source, rows.size_bytes(), Link::kHostToDevice, "accepted");
  return step_.inputs.source;
}

void SessionBuffers::download_samples(int64_t rows) const {
  layout_.compute().copy_small(host_result_.samples, step_.result.samples,
                               static_cast<uint64_t>(rows) * sizeof(int32_t), Link::kDeviceToHost, "samples");
}

// The step's result, then its tokens.
void SessionBuffers::download_result(int64_t nodes) const {
  const auto* const from = reinterpret_cast<const std::byte*>(step_.result.acceptance);
  const uint64_t before = StepResult::bytes(layout_.pass_rows());
  CHECK(from + before == reinterpret_cast<const std::byte*>(step_.inputs.tokens));
  layout_.compute().copy_small(host_results_.data(), from, before + static_cast<uint64_t>(nodes) * sizeof(int32_t),
                               Link::kDeviceToHost, "result");
}

void SessionBuffers::download_log_probs() const {
  layout_.compute().copy_small(host_log_probs_memory_.data(), step_.log_probs.samples, layout_.log_probs_bytes(),
                               Link::kDeviceToHost, "log-probabilities");
}

void SessionBuffers::download_ranked() const {
  layout_.compute().copy_small(host_ranked_.data(), step_.ranked, layout_.ranked_bytes(), Link::kDeviceToHost,
                               "ranked");
}

}  // namespace headrace
