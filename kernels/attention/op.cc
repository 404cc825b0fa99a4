#include "kernels/attention/op.h"

#include <bit>
#include <cmath>

#include "kernels/attention/bodies.h"
#include "kernels/cpu/dispatch.h"
#include "kernels/segment.h"

namespace headrace {

using kernels::check_segment;
using kernels::dispatch;

namespace {

void check_shape(const AttentionShape& s, const void* q) {
  CHECK(s.queries >= 0 && s.heads > 0 && s.kv_heads > 0, "queries=", s.queries, " heads=", s.heads,
        " kv_heads=", s.kv_heads);
  CHECK(s.heads % s.kv_heads == 0, "heads=", s.heads, " kv_heads=", s.kv_heads);
  CHECK(s.head_dim > 0 && s.head_dim % 2 == 0 && s.head_dim <= kMaxAttentionHeadDim, "head_dim=", s.head_dim);
  CHECK(s.q_stride >= s.heads * s.head_dim, "q_stride=", s.q_stride, " heads=", s.heads, " head_dim=", s.head_dim);
  CHECK(std::isfinite(s.scale) && s.window >= 0, "scale=", s.scale, " window=", s.window);
  CHECK(s.queries == 0 || q != nullptr);
}

void check_exact(const AttentionShape& s) {
  CHECK(!low_bit(s.k_type) && !low_bit(s.v_type), dtype_name(s.k_type), " and ", dtype_name(s.v_type));
}

void check_low_bit(const PrefixAttentionParams& params) {
  const AttentionShape& s = params.shape;
  if (s.k_type != DType::kInt4 && s.v_type != DType::kInt4) return;
  CHECK(s.k_type == s.v_type, dtype_name(s.k_type), " and ", dtype_name(s.v_type));
  CHECK(s.head_dim >= kInt4Group && std::has_single_bit(static_cast<uint64_t>(s.head_dim)), "head_dim=", s.head_dim);
  CHECK(params.segment_count == 0 || params.rotated_q != nullptr);
}

}  // namespace

void prefill_attention(const PrefillAttentionParams& params, Stream& stream) {
  check_shape(params.shape, params.q);
  check_exact(params.shape);
  if (params.shape.queries == 0) return;
  CHECK(params.out != nullptr && params.segments != nullptr);
  CHECK(params.segment_count > 0 && params.first_position >= 0, "segment_count=", params.segment_count,
        " first_position=", params.first_position);
  dispatch(kernels::cpu::prefill_attention, kernels::cuda::prefill_attention, params, stream);
}

void prefix_attention(const PrefixAttentionParams& params, Stream& stream) {
  check_shape(params.shape, params.q);
  CHECK(params.segment_count >= 0 && params.segment_count <= kMaxPrefixParts, "segment_count=", params.segment_count);
  if (params.shape.queries == 0) return;
  CHECK(params.positions != nullptr && params.state.o != nullptr && params.state.ml != nullptr);
  CHECK(params.segment_count == 0 || (params.scratch.o != nullptr && params.scratch.ml != nullptr));
  const bool whole = !low_bit(params.shape.k_type) && !low_bit(params.shape.v_type);
  for (int64_t i = 0; i < params.segment_count; ++i) {
    check_segment(params.segments[i]);
    CHECK(!whole || params.segments[i].first_row == 0, "first_row=", params.segments[i].first_row);
  }
  check_low_bit(params);
  dispatch(kernels::cpu::prefix_attention, kernels::cuda::prefix_attention, params, stream);
}

void tail_attention(const TailAttentionParams& params, Stream& stream) {
  check_shape(params.shape, params.q);
  check_exact(params.shape);
  if (params.shape.queries == 0) return;
  CHECK(params.positions != nullptr && params.committed != nullptr && params.path != nullptr);
  CHECK(params.state.o != nullptr && params.state.ml != nullptr);
  CHECK(params.pass_k != nullptr && params.pass_v != nullptr && params.pass_rows > 0 && params.path_stride > 0,
        "pass_rows=", params.pass_rows, " path_stride=", params.path_stride);
  CHECK(params.ring_rows >= 0, "ring_rows=", params.ring_rows);
  CHECK(params.ring_rows == 0 || (params.ring_k != nullptr && params.ring_v != nullptr));
  dispatch(kernels::cpu::tail_attention, kernels::cuda::tail_attention, params, stream);
}

}  // namespace headrace
