#include "kernels/recurrence/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/recurrence/bodies.h"

namespace headrace {

using kernels::dispatch;

namespace {

void check_shape(const DeltaShape& shape) {
  CHECK(shape.k_heads > 0 && shape.v_heads > 0 && shape.v_heads % shape.k_heads == 0, "k_heads=", shape.k_heads,
        " v_heads=", shape.v_heads);
  const auto fits = [](int64_t dim) { return dim > 0 && dim % 8 == 0 && dim <= kMaxDeltaDim; };
  CHECK(fits(shape.k_dim) && fits(shape.v_dim), "k_dim=", shape.k_dim, " v_dim=", shape.v_dim);
}

void check_type(DType type) { CHECK(!low_bit(type), "type=", dtype_name(type)); }

void check_path(const DeltaPath& path, int64_t rows, int64_t pass_rows) {
  CHECK(path.path != nullptr && path.positions != nullptr && path.committed != nullptr && path.path_stride > 0,
        "path_stride=", path.path_stride);
  CHECK(rows >= 0 && rows <= pass_rows, "rows=", rows, " pass_rows=", pass_rows);
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
  if (params.rows == 0) return;
  dispatch(kernels::cpu::delta_chunks, kernels::cuda::delta_chunks, params, stream);
}

uint64_t delta_chunks_scratch_bytes(const DeltaShape& shape, int64_t rows) {
  check_shape(shape);
  const int64_t matrices = 2 * (rows / kDeltaChunkRows) * shape.v_heads;
  return static_cast<uint64_t>(matrices * kDeltaChunkRows * kDeltaChunkRows) * sizeof(float);
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
