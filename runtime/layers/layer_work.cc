#include "runtime/layers/layer_work.h"

#include <algorithm>

namespace headrace {

LayerWidths LayerWidths::of(int64_t hidden, std::span<const LayerSpec> layers) {
  LayerWidths widths{.hidden = hidden, .token_layers = static_cast<int64_t>(layers.size())};
  for (const LayerSpec& layer : layers) {
    widths.token = std::max(widths.token, layer.token_width);
    if (layer.has_attention()) {
      widths.heads = std::max(widths.heads, layer.attention().heads);
      widths.q = std::max(widths.q, layer.attention().q_width());
    }
    widths.in = std::max(widths.in, layer.in_width());
    widths.out = std::max(widths.out, layer.out_width());
    widths.ffn = std::max(widths.ffn, layer.ffn.width);
    widths.output_norms = widths.output_norms || layer.output_norms;
    if (!layer.ffn.experts) continue;
    widths.experts_beside = widths.experts_beside || layer.ffn.experts->beside;
    widths.shared_expert = widths.shared_expert || layer.ffn.experts->shared;
    widths.scores = std::max(widths.scores, layer.ffn.experts->scores());
    widths.experts = std::max(widths.experts, layer.ffn.experts->count);
    widths.used = std::max(widths.used, layer.ffn.experts->used);
    widths.expert_ffn = std::max(widths.expert_ffn, layer.ffn.experts->width);
  }
  return widths;
}

ExpertsWork ExpertsWork::carve(const LayerWidths& widths, const LayerWorkSize& size, BumpAllocator& allocator) {
  const int64_t part = widths.int8_experts ? size.rows : std::min(size.rows, kExpertPartRows);
  const int64_t chosen = part * widths.used, pairs = chosen + (widths.shared_expert ? part : 0);
  const auto rows_of = [&](int64_t width) -> void* {
    return allocator.take_bytes(static_cast<uint64_t>(pairs * width) * dtype_bytes(size.type));
  };
  ExpertsWork work;
  work.scores = allocator.take<float>(size.rows * widths.scores);
  work.chosen = allocator.take<int32_t>(chosen);
  work.shares = allocator.take<float>(chosen);
  work.begin = allocator.take<int32_t>(widths.scores + 1);
  work.places = allocator.take<int32_t>(chosen);
  if (widths.int8_experts) return work;
  work.from = allocator.take<int32_t>(pairs);
  work.present = allocator.take<int32_t>(std::min(widths.scores, pairs));
  if (size.backend == Backend::kCpu) work.x = rows_of(widths.hidden);
  work.gate_up = rows_of(2 * widths.expert_ffn);
  work.activated = rows_of(widths.expert_ffn);
  work.y = allocator.take<float>(pairs * widths.hidden);
  return work;
}

LayerWork LayerWork::carve(const LayerWidths& widths, const LayerWorkSize& size, BumpAllocator& allocator) {
  const auto rows_of = [&](int64_t width) -> void* {
    return allocator.take_bytes(static_cast<uint64_t>(size.rows * width) * dtype_bytes(size.type));
  };
  LayerWork work;
  work.normed = rows_of(widths.hidden);
  work.qkv = rows_of(widths.in);
  work.attention = rows_of(widths.out);
  work.gate_up = rows_of(2 * widths.ffn);
  work.activated = rows_of(widths.ffn);
  if (widths.experts > 0) work.experts = ExpertsWork::carve(widths, size, allocator);
  const auto residual_rows = [&]() -> void* {
    return allocator.take_bytes(static_cast<uint64_t>(size.rows * widths.hidden) * dtype_bytes(size.hidden_type));
  };
  if (widths.token > 0) {
    const int64_t inputs = widths.token_layers * widths.token;
    work.token_rows = allocator.take<int32_t>(size.rows * widths.token_layers);
    work.token_inputs = rows_of(inputs);
    work.token_part = rows_of(inputs);
  }
  if (widths.output_norms) work.branch = work.normed;  // free whenever a branch is added
  const bool other_type = widths.output_norms && size.hidden_type != size.type;
  if (other_type || widths.experts_beside || widths.shared_expert) work.branch = residual_rows();
  if (widths.experts_beside) work.dense = residual_rows();
  return work;
}

AttentionState carve_states(const LayerWidths& widths, int64_t rows, BumpAllocator& allocator) {
  return {.o = allocator.take<float>(rows * widths.q), .ml = allocator.take<float>(rows * widths.heads * 2)};
}

RowShape row_shape(std::span<const LayerSpec> layers, DType k_type, DType v_type, DType exact, StateGroup group) {
  const auto inside = [group](const LayerSpec& layer) { return layer.keeps_rows() && group_of(layer) == group; };
  const auto first = std::find_if(layers.begin(), layers.end(), inside);
  if (first == layers.end()) return {};
  const AttentionSpec& a = first->attention();
  const bool one = std::all_of(layers.begin(), layers.end(),
                               [&](const LayerSpec& layer) { return !inside(layer) || layer.attention().k_is_v; });
  return {.layers = std::count_if(layers.begin(), layers.end(), inside),
          .kv_heads = a.kv_heads,
          .head_dim = a.head_dim,
          .k_type = k_type,
          .v_type = v_type,
          .exact_type = exact,
          // Windows are built in rings, which have both.
          .values_alone = group == StateGroup::kRows && one && k_type == v_type && !low_bit(k_type)};
}

}  // namespace headrace
