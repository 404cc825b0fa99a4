#include "kernels/rows/op.h"

#include <bit>

#include "kernels/cpu/dispatch.h"
#include "kernels/rows/bodies.h"

namespace headrace {

using kernels::dispatch;

namespace {

void check_types(DType exact, DType stored, int64_t head_dim) {
  CHECK(!low_bit(exact) && (low_bit(stored) || stored == exact), dtype_name(exact), " rows stored as ",
        dtype_name(stored));
  CHECK(head_dim > 0 && head_dim % 2 == 0 && head_dim <= kMaxRowHeadDim, "head_dim=", head_dim);
  CHECK(stored != DType::kInt4 || (head_dim >= kInt4Group && std::has_single_bit(static_cast<uint64_t>(head_dim))),
        "head_dim=", head_dim, " for int4");
}

void check_rows(const RowsParams& p) {
  check_types(p.k_type, p.stored_k_type, p.head_dim);
  check_types(p.v_type, p.stored_v_type, p.head_dim);
  CHECK(p.kv_heads > 0, "kv_heads=", p.kv_heads);
  CHECK(p.from.stride_rows == p.to.stride_rows, "stride_rows=", p.from.stride_rows, " and ", p.to.stride_rows);
  CHECK(p.first_row >= 0 && p.count >= 0 && p.first_row <= p.from.stride_rows - p.count, "rows ", p.first_row, " + ",
        p.count, " of ", p.from.stride_rows);
  CHECK(p.count == 0 || (p.from.k != nullptr && p.from.v != nullptr && p.to.k != nullptr && p.to.v != nullptr));
}

void check_remainders(const KvSegment& exact, const KvSegment& rows, int64_t kv_heads, int64_t head_dim) {
  CHECK(kv_heads > 0 && head_dim > 0 && head_dim % 8 == 0, "kv_heads=", kv_heads, " head_dim=", head_dim);
  CHECK(exact.stride_rows > 0 && exact.stride_rows == rows.stride_rows, "stride_rows=", exact.stride_rows, " and ",
        rows.stride_rows);
  CHECK(exact.first_row == 0 && rows.first_row == 0, "first_row=", exact.first_row, " and ", rows.first_row);
  CHECK(kv_heads * exact.stride_rows * head_dim % kRemainderRun == 0, "kv_heads=", kv_heads,
        " stride_rows=", exact.stride_rows, " head_dim=", head_dim);
  CHECK(kv_heads * exact.stride_rows * head_dim <= INT32_MAX / 2, "stride_rows=", exact.stride_rows);
  CHECK(exact.k != nullptr && exact.v != nullptr && rows.k != nullptr && rows.v != nullptr);
}

}  // namespace

void quantise_rows(const RowsParams& params, Stream& stream) {
  check_rows(params);
  CHECK(!params.write_back || (params.stored_k_type != DType::kInt4 && params.stored_v_type != DType::kInt4));
  if (params.count > 0) dispatch(kernels::cpu::quantise_rows, kernels::cuda::quantise_rows, params, stream);
}

void dequantise_rows(const RowsParams& params, Stream& stream) {
  check_rows(params);
  CHECK(params.stored_k_type != DType::kInt4 && params.stored_v_type != DType::kInt4);
  if (params.count > 0) dispatch(kernels::cpu::dequantise_rows, kernels::cuda::dequantise_rows, params, stream);
}

void quantise_ring(const QuantiseRingParams& params, Stream& stream) {
  check_types(params.k_type, params.stored_k_type, params.head_dim);
  check_types(params.v_type, params.stored_v_type, params.head_dim);
  CHECK(params.layers >= 0 && params.kv_heads > 0, "layers=", params.layers, " kv_heads=", params.kv_heads);
  CHECK(params.count >= 0 && params.count <= params.ring_rows, "count=", params.count, " ring_rows=", params.ring_rows);
  CHECK(params.to_position >= 0 && params.first_position >= params.to_position &&
            params.count <= params.to_rows - (params.first_position - params.to_position),
        "positions ", params.first_position, " + ", params.count, " in a plane of ", params.to_rows, " from ",
        params.to_position);
  if (params.count == 0 || params.layers == 0) return;
  CHECK(params.ring_k != nullptr && params.ring_v != nullptr && params.to_k != nullptr && params.to_v != nullptr);
  dispatch(kernels::cpu::quantise_ring, kernels::cuda::quantise_ring, params, stream);
}

void encode_remainders(const EncodeRemaindersParams& params, Stream& stream) {
  check_remainders(params.exact, params.rows, params.kv_heads, params.head_dim);
  CHECK(params.remainders != nullptr && params.words != nullptr);
  dispatch(kernels::cpu::encode_remainders, kernels::cuda::encode_remainders, params, stream);
}

void decode_remainders(const DecodeRemaindersParams& params, Stream& stream) {
  CHECK(params.count >= 0 && params.count <= kMaxRemainderSegments, "count=", params.count);
  for (int64_t i = 0; i < params.count; ++i) {
    const DecodeRemaindersParams::Segment& segment = params.segments[i];
    check_remainders(segment.exact, segment.rows, params.kv_heads, params.head_dim);
    CHECK(segment.remainders != nullptr);
  }
  if (params.count == 0) return;
  dispatch(kernels::cpu::decode_remainders, kernels::cuda::decode_remainders, params, stream);
}

void commit_rows(const CommitParams& params, Stream& stream) {
  CHECK(params.layers > 0 && params.kv_heads > 0 && params.head_dim > 0, "layers=", params.layers,
        " kv_heads=", params.kv_heads, " head_dim=", params.head_dim);
  CHECK(params.count >= 0 && params.count <= params.ring_rows, "count=", params.count, " ring_rows=", params.ring_rows);
  CHECK((params.active_k == nullptr) == (params.active_v == nullptr));
  CHECK(params.active_k == nullptr ||
            (params.active_position >= 0 && params.active_position <= params.first_position &&
             params.first_position + params.count <= params.active_position + params.active_rows),
        "positions ", params.first_position, " + ", params.count, " in a segment of ", params.active_rows, " from ",
        params.active_position);
  if (params.count == 0) return;
  dispatch(kernels::cpu::commit_rows, kernels::cuda::commit_rows, params, stream);
}

void fill_ring(const FillRingParams& params, Stream& stream) {
  CHECK(params.kv_heads > 0 && params.head_dim > 0, "kv_heads=", params.kv_heads, " head_dim=", params.head_dim);
  CHECK(params.count >= 0 && params.count <= params.ring_rows && params.count <= params.stride_rows,
        "count=", params.count, " ring_rows=", params.ring_rows, " stride_rows=", params.stride_rows);
  CHECK(params.first_position >= 0, "first_position=", params.first_position);
  if (params.count == 0) return;
  dispatch(kernels::cpu::fill_ring, kernels::cuda::fill_ring, params, stream);
}

void place_rows(const PlaceRowsParams& params, Stream& stream) {
  const int64_t rows = params.sinks + params.keep * params.chunk_rows;
  CHECK(params.layers > 0 && params.kv_heads > 0 && params.head_dim > 0 && params.head_dim % 2 == 0 &&
            params.head_dim <= kMaxPlacedHeadDim,
        "layers=", params.layers, " kv_heads=", params.kv_heads, " head_dim=", params.head_dim);
  CHECK(params.sinks >= 0 && params.keep >= 0 && params.chunk_rows >= 0 && rows <= params.out_rows &&
            rows <= params.end && params.end <= params.table_rows,
        "rows=", rows, " out_rows=", params.out_rows, " end=", params.end, " table_rows=", params.table_rows);
  CHECK(params.keep == 0 || (params.chosen != nullptr && params.ring_k != nullptr && params.ring_v != nullptr));
  if (rows == 0) return;
  dispatch(kernels::cpu::place_rows, kernels::cuda::place_rows, params, stream);
}

void make_keys(const MakeKeysParams& params, Stream& stream) {
  CHECK(params.kv_heads > 0 && params.head_dim > 0 && params.head_dim % 2 == 0 && params.head_dim <= kMaxRowHeadDim,
        "kv_heads=", params.kv_heads, " head_dim=", params.head_dim);
  CHECK(!low_bit(params.type) && !low_bit(params.weight_type), dtype_name(params.type));
  CHECK(params.count >= 0 && params.count <= (params.positions != nullptr ? 1 : kMaxKeyRuns), "count=", params.count);
  CHECK(params.weight != nullptr && params.cos_sin != nullptr);
  for (int64_t i = 0; i < params.count; ++i) {
    const MakeKeysParams::Run& run = params.runs[i];
    CHECK(run.rows >= 0 && run.position >= 0 && run.v != nullptr && run.k != nullptr, "rows=", run.rows,
          " position=", run.position);
    CHECK(params.positions != nullptr || run.position + run.rows <= params.table_rows, "positions ", run.position,
          " + ", run.rows, " of a table of ", params.table_rows);
  }
  if (params.count == 0) return;
  dispatch(kernels::cpu::make_keys, kernels::cuda::make_keys, params, stream);
}

}  // namespace headrace
