#include "kernels/recurrence/op.h"

#include <algorithm>

#include "kernels/cpu/dispatch.h"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/chunk_scratch.h"

namespace headrace {

using kernels::dispatch;

namespace {

void check_shape(const DeltaShape& shape) {
  CHECK(shape.k_heads > 0 && shape.v_heads > 0 && shape.v_heads % shape.k_heads == 0, "k_heads=", shape.k_heads,
        " v_heads=", shape.v_heads);
  const auto fits = [](int64_t dim, int64_t most) { return dim > 0 && dim % 8 == 0 && dim <= most; };
  CHECK(fits(shape.k_dim, kMaxDeltaKeyDim) && fits(shape.v_dim, kMaxDeltaDim), "k_dim=", shape.k_dim,
        " v_dim=", shape.v_dim);
}

void check_type(DType type) { CHECK(!low_bit(type), "type=", dtype_name(type)); }

void check_path(const DeltaPath& path, int64_t rows, int64_t pass_rows) {
  CHECK(path.path != nullptr && path.positions != nullptr && path.committed != nullptr && path.path_stride > 0,
        "path_stride=", path.path_stride);
  CHECK(rows >= 0 && rows <= pass_rows, "rows=", rows, " pass_rows=", pass_rows);
}

// The rows from `first` on, kDeltaPartRows at most.
DeltaChunksParams part_of(const DeltaChunksParams& params, int64_t first) {
  const DeltaShape& shape = params.shape;
  DeltaChunksParams part = params;
  part.rows = std::min(params.rows - first, kDeltaPartRows);
  part.q += first * shape.k_width();
  part.k += first * shape.k_width();
  part.v += first * shape.v_width();
  part.o += first * shape.v_width();
  part.beta += first * shape.v_heads;
  part.g += first * shape.v_heads;
  part.m =
      static_cast<const char*>(params.m) + first * params.m_stride * static_cast<int64_t>(dtype_bytes(params.type));
  return part;
}

}  // namespace

void delta_inputs(const DeltaInputsParams& params, Stream& stream) {
  check_shape(params.shape);
  check_type(params.type);
  CHECK(params.in_stride >= params.shape.in_width(), "in_stride=", params.in_stride);
  if (params.path.path != nullptr) {
    check_path(params.path, params.rows, params.pass_rows);
    CHECK(params.stored.m != nullptr);
  }
  CHECK(params.rows >= 0 && params.rows <= params.pass_rows, "rows=", params.rows, " pass_rows=", params.pass_rows);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::delta_inputs, kernels::cuda::delta_inputs, params, stream);
}

void delta_recurrence(const DeltaRecurrenceParams& params, Stream& stream) {
  check_shape(params.shape);
  check_path(params.path, params.rows, params.pass_rows);
  CHECK(params.ahead.state == nullptr || (params.ahead.row != nullptr && params.ahead.length != nullptr));
  if (params.rows == 0) return;
  dispatch(kernels::cpu::delta_recurrence, kernels::cuda::delta_recurrence, params, stream);
}

void delta_commit(const DeltaCommitParams& params, Stream& stream) {
  check_shape(params.shape);
  CHECK(params.layers > 0 && params.count >= 0, "layers=", params.layers, " count=", params.count);
  if (params.conv != nullptr) check_type(params.type);
  if (params.count == 0) return;
  dispatch(kernels::cpu::delta_commit, kernels::cuda::delta_commit, params, stream);
}

void delta_chunks(const DeltaChunksParams& params, Stream& stream) {
  check_shape(params.shape);
  check_type(params.type);
  CHECK(params.rows >= 0 && params.m_stride >= params.shape.channels(), "rows=", params.rows,
        " m_stride=", params.m_stride);
  CHECK(params.rows < kDeltaChunkRows || params.scratch != nullptr, "rows=", params.rows);
  for (int64_t first = 0; first < params.rows; first += kDeltaPartRows) {
    dispatch(kernels::cpu::delta_chunks, kernels::cuda::delta_chunks, part_of(params, first), stream);
  }
}

uint64_t delta_chunks_scratch_bytes(const DeltaShape& shape, int64_t rows) {
  check_shape(shape);
  const int64_t chunks = std::min(rows, kDeltaPartRows) / kDeltaChunkRows;
  return static_cast<uint64_t>(chunks *
                               (kernels::key_matrices_bytes(shape) + shape.v_heads * kernels::kValueMatricesBytes));
}

void delta_output(const DeltaOutputParams& params, Stream& stream) {
  check_shape(params.shape);
  check_type(params.z_type);
  check_type(params.type);
  CHECK(params.rows >= 0 && params.z_stride >= params.shape.v_width(), "rows=", params.rows,
        " z_stride=", params.z_stride);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::delta_output, kernels::cuda::delta_output, params, stream);
}

}  // namespace headrace
