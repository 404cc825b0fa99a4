#include "kernels/int8_attention/op.h"

#include <cmath>

#include "kernels/cpu/dispatch.h"
#include "kernels/int8_attention/bodies.h"
#include "kernels/int8_attention/layout.h"

namespace headrace {

using kernels::dispatch;

namespace {

static_assert(kernels::kKv8Tile == kPrefixTile);

void check_rows(int64_t kv_heads, int64_t head_dim) {
  CHECK(kv_heads > 0, "kv_heads=", kv_heads);
  CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxInt8AttentionHeadDim, "head_dim=", head_dim);
}

void check_segments(const KvSegment* segments, int64_t count) {
  CHECK(segments != nullptr && count > 0, "segment_count=", count);
}

}  // namespace

uint64_t int8_kv_bytes(Backend backend, int64_t rows, int64_t kv_heads, int64_t head_dim) {
  check_rows(kv_heads, head_dim);
  CHECK(rows >= 0, "rows=", rows);
  const bool cpu = backend == Backend::kCpu;
  const int64_t dim =
      cpu ? kernels::kv8_dim(head_dim, kernels::cpu::kKv8Multiple) : kernels::cuda::kv8_instance(head_dim);
  const int64_t block = cpu ? kernels::cpu::kv8_block_bytes(dim) : kernels::cuda::kv8_block_bytes(dim);
  return static_cast<uint64_t>(ceil_div(rows, kPrefixTile) * kv_heads * block);
}

void int8_centre(const Int8CentreParams& params, Stream& stream) {
  check_rows(params.kv_heads, params.head_dim);
  check_segments(params.segments, params.segment_count);
  CHECK(!low_bit(params.k_type) && params.centre != nullptr);
  dispatch(kernels::cpu::int8_centre, kernels::cuda::int8_centre, params, stream);
}

void int8_kv(const Int8KvParams& params, Stream& stream) {
  check_rows(params.kv_heads, params.head_dim);
  check_segments(params.segments, params.segment_count);
  CHECK(!low_bit(params.k_type) && !low_bit(params.v_type), dtype_name(params.k_type), " and ",
        dtype_name(params.v_type));
  CHECK(params.first >= 0 && params.first <= params.end && params.end <= params.out.rows, "rows ", params.first, " to ",
        params.end, " of ", params.out.rows);
  CHECK(params.first % kPrefixTile == 0 && params.end % kPrefixTile == 0, "rows ", params.first, " to ", params.end);
  if (params.first == params.end) return;
  CHECK(params.centre != nullptr && params.out.data != nullptr);
  dispatch(kernels::cpu::int8_kv, kernels::cuda::int8_kv, params, stream);
}

uint64_t int8_attention_workspace_bytes(Backend backend, const AttentionShape& shape) {
  return backend == Backend::kCpu ? 0 : kernels::cuda::kv8_workspace(shape.queries * shape.heads, shape.head_dim).bytes;
}

void int8_attention(const Int8AttentionParams& params, Stream& stream) {
  const AttentionShape& s = params.shape;
  check_rows(s.kv_heads, s.head_dim);
  CHECK(s.queries >= 0 && s.heads > 0 && s.heads % s.kv_heads == 0, "queries=", s.queries, " heads=", s.heads,
        " kv_heads=", s.kv_heads);
  CHECK(s.q_stride >= s.heads * s.head_dim, "q_stride=", s.q_stride, " heads=", s.heads, " head_dim=", s.head_dim);
  CHECK(std::isfinite(s.scale) && s.scale > 0 && s.window == 0, "scale=", s.scale, " window=", s.window);
  CHECK(!low_bit(s.k_type) && !low_bit(s.v_type), dtype_name(s.k_type), " and ", dtype_name(s.v_type));
  CHECK(params.first_position >= kInt8CentreRows, "first_position=", params.first_position);
  if (s.queries == 0) return;
  check_segments(params.segments, params.segment_count);
  const int64_t whole = (params.first_position + s.queries - 1) / kPrefixTile * kPrefixTile;
  CHECK(params.kv.data != nullptr && params.kv.rows >= whole, "rows=", params.kv.rows, " of ", whole);
  CHECK(params.q != nullptr && params.out != nullptr && params.centre != nullptr);
  CHECK(params.workspace != nullptr || int8_attention_workspace_bytes(stream.backend(), s) == 0);
  dispatch(kernels::cpu::int8_attention, kernels::cuda::int8_attention, params, stream);
}

}  // namespace headrace
