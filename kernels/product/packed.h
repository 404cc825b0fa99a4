// The decode path's product with quantised weights (kernels/weights/cuda_layout.h): one kernel for any number of rows,
// one launch for all parts of a weight. The order of an output's sum is fixed by n and k alone: k is divided into one
// run or four, the tensor cores add each in order, and the runs' sums are added in order in f32. So a row's bits depend
// neither on the other rows nor on the GPU, and rows need no padding. Plain bf16 parts are read as they are and give
// the same bits as packed ones of the same values. Takes no memory. Internal to kernels/cuda.
#pragma once

#include "kernels/product/op.h"
#include "kernels/weights/cuda_layout.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// False, and nothing is enqueued, for what it does not take: it takes products in bf16, and k in multiples of 8 with x
// and the parts aligned to 16 bytes.
bool packed_normalises(const ProductParams& params);  // rows few enough for it to apply the input's norm
bool packed_product(const ProductParams& params, CudaStream& stream);
// gated_product() in one launch, to `activated`: the same for few rows, where gate and up have as many bits a weight.
bool packed_gated_product(const ProductParams& params, void* activated, CudaStream& stream);

// rotated_product() in one launch: the same for few rows, where no head is normalised and heads are whole tiles, an
// even number a half.
bool packed_rotated_product(const ProductParams& params, const RopeParams& rope, CudaStream& stream);

// The kernel's parameters.
struct PackedRope {
  const int32_t *positions, *out_first;
  const float* cos_sin;
  void *k_out, *v_out;
  DType k_type, v_type;
  int heads, kv_heads, head_dim;  // head_dim 0: the output is not rotated
  int64_t table_rows, out_row_stride, out_head_stride;
};
struct PackedPart {
  const void* data;
  WeightType type;
  int rows;
  int first_block;  // of the grid's y
  int first_col;    // of the output
};
struct PackedProduct {
  PackedPart parts[3];
  int part_count;
  const void *x, *bias, *residual;
  void* out;
  bool out_f32;  // and the residual
  int rows, n, k;
  PackedRope rope;
  int out_cols;      // of a row of the output
  const void* norm;  // rms_norm()'s weight for x, or null
  bool x_f32;        // with a norm
  float eps;
  bool gated;  // the parts are gate and up, and the output is silu(gate) * up
};

// Whether a block holds all of x from the start: then its warps do not wait for each other at every step.
HEADRACE_BOTH inline int whole_x_bytes(const PackedProduct& p) {
  return (p.k + kStepCols - 1) / kStepCols * kStepCols * 2 * p.rows;
}
inline bool has_whole_x(const PackedProduct& p) { return p.rows <= 8 && whole_x_bytes(p) <= 32 * 1024; }

void packed_product_in_one(const PackedProduct& product, CudaStream& stream);   // k in one run
void packed_product_in_four(const PackedProduct& product, CudaStream& stream);  // in four

}  // namespace headrace::kernels::cuda
