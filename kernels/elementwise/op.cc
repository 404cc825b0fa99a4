#include "kernels/elementwise/op.h"

#include "kernels/cpu/dispatch.h"
#include "kernels/elementwise/bodies.h"

namespace headrace {

using kernels::dispatch;

void embedding(const EmbeddingParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.vocab > 0 && params.hidden > 0, "rows=", params.rows, " vocab=", params.vocab,
        " hidden=", params.hidden);
  CHECK(params.out_type == params.type || params.out_type == DType::kF32, "out_type=", dtype_name(params.out_type),
        " type=", dtype_name(params.type));
  if (params.rows == 0) return;
  dispatch(kernels::cpu::embedding, kernels::cuda::embedding, params, stream);
}

void rms_norm(const RmsNormParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.cols > 0, "rows=", params.rows, " cols=", params.cols);
  CHECK(params.x_stride >= params.cols && params.out_stride >= params.cols, "x_stride=", params.x_stride,
        " out_stride=", params.out_stride, " of ", params.cols);
  CHECK(params.x_type == params.type || (params.x_type == DType::kF32 && params.x != params.out),
        "x_type=", dtype_name(params.x_type), " type=", dtype_name(params.type));
  CHECK(params.residual == nullptr || params.x != params.out);
  CHECK(params.factor == nullptr || params.residual != nullptr);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::rms_norm, kernels::cuda::rms_norm, params, stream);
}

void rope(const RopeParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.heads > 0 && params.kv_heads >= 0, "rows=", params.rows, " heads=", params.heads,
        " kv_heads=", params.kv_heads);
  CHECK(params.head_dim > 0 && params.head_dim % 2 == 0, "head_dim=", params.head_dim);
  CHECK(params.qkv_stride >= params.heads * params.head_dim, "qkv_stride=", params.qkv_stride);
  CHECK(params.q_norm == nullptr || params.head_dim <= kMaxNormedHeadDim, "head_dim=", params.head_dim);
  CHECK(params.kv_heads == 0 || (params.q_norm == nullptr) == (params.k_norm == nullptr));
  CHECK(!params.v_norm || params.q_norm != nullptr);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::rope, kernels::cuda::rope, params, stream);
}

void rope_table(const RopeTableParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.head_dim > 0 && params.head_dim % 2 == 0, "rows=", params.rows,
        " head_dim=", params.head_dim);
  CHECK(params.step > 0, "step=", params.step);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::rope_table, kernels::cuda::rope_table, params, stream);
}

void row_ids(const RowIdsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.first >= 0 && params.count > 0 && params.first + params.count <= params.stride,
        "rows=", params.rows, " first=", params.first, " count=", params.count, " stride=", params.stride);
  if (params.rows == 0) return;
  dispatch(kernels::cpu::row_ids, kernels::cuda::row_ids, params, stream);
}

void silu_mul(const SiluMulParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.cols > 0, "rows=", params.rows, " cols=", params.cols);
  if (params.rows == 0) return;
  SiluMulParams apart = params;
  if (params.up == nullptr) {
    apart.up =
        static_cast<const std::byte*>(params.gate_up) + static_cast<uint64_t>(params.cols) * dtype_bytes(params.type);
    apart.gate_stride = apart.up_stride = 2 * params.cols;
  }
  CHECK(apart.gate_stride >= apart.cols && apart.up_stride >= apart.cols, "gate_stride=", apart.gate_stride,
        " up_stride=", apart.up_stride, " cols=", apart.cols);
  dispatch(kernels::cpu::silu_mul, kernels::cuda::silu_mul, apart, stream);
}

void gate_rows(const GateRowsParams& params, Stream& stream) {
  CHECK(params.rows >= 0 && params.heads > 0 && params.head_dim > 0, "rows=", params.rows, " heads=", params.heads,
        " head_dim=", params.head_dim);
  CHECK(params.gate_head_stride >= params.head_dim &&
            params.gate_stride >= (params.heads - 1) * params.gate_head_stride + params.head_dim,
        "gate_stride=", params.gate_stride, " gate_head_stride=", params.gate_head_stride);
  CHECK(!low_bit(params.type), "type=", dtype_name(params.type));
  if (params.rows == 0) return;
  dispatch(kernels::cpu::gate_rows, kernels::cuda::gate_rows, params, stream);
}

void scale(const ScaleParams& params, Stream& stream) {
  CHECK(params.count >= 0 && !low_bit(params.type) && (params.x_type == params.type || params.x_type == DType::kF32),
        "count=", params.count, " x_type=", dtype_name(params.x_type), " type=", dtype_name(params.type));
  if (params.count == 0) return;
  dispatch(kernels::cpu::scale, kernels::cuda::scale, params, stream);
}

void softcap(const SoftcapParams& params, Stream& stream) {
  CHECK(params.count >= 0 && params.cap > 0, "count=", params.count, " cap=", params.cap);
  if (params.count == 0) return;
  dispatch(kernels::cpu::softcap, kernels::cuda::softcap, params, stream);
}

void convert(const ConvertParams& params, Stream& stream) {
  CHECK(params.count >= 0 && !low_bit(params.in_type) && !low_bit(params.out_type) && params.in != params.out,
        "count=", params.count, " from ", dtype_name(params.in_type), " to ", dtype_name(params.out_type));
  if (params.count == 0) return;
  dispatch(kernels::cpu::convert, kernels::cuda::convert, params, stream);
}

}  // namespace headrace
