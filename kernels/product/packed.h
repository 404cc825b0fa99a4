// The decode path's product with quantised weights (kernels/weights/cuda_layout.h): two kernels, for up to 16 rows
// and for more, which give a row the same bits; one launch for all parts of a weight. The tensor cores add x times q -
// zero, whole numbers, over the columns of one scale; these sums are multiplied by their scales and added in f32, so
// weights are never rounded. Minima are multiplied by sums of x over their columns, which are rounded to 16 bits: a
// block that holds all of x makes them, for more rows a kernel before it does. The order of an output's sum is fixed by
// n and k alone: k is divided into one run or four, columns are added in order, and the runs' sums are added in order
// in f32. So a row's bits do not depend on the other rows, and rows need no padding. Plain bf16 parts are read as they
// are. Takes no memory but the stream's sums and counters. Internal to kernels/cuda.
#pragma once

#include "kernels/product/op.h"
#include "kernels/weights/cuda_layout.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// False, and nothing is enqueued, for what it does not take: it takes products in bf16, and k in multiples of 8 with x
// and the parts aligned to 16 bytes.
bool packed_normalises(const ProductParams& params);  // rows few enough for it to apply the input's norm
bool packed_product(const ProductParams& params, CudaStream& stream);
// gated_product() in one launch, to `activated`: the same for few rows, where gate and up are of one type.
bool packed_gated_product(const ProductParams& params, void* activated, CudaStream& stream);

// rotated_product() in one launch: the same for few rows, where no head is normalised and heads are whole tiles, an
// even number a half.
bool packed_rotated_product(const ProductParams& params, const RopeParams& rope, CudaStream& stream);

// The kernel's parameters.
struct PackedRope {
  const int32_t *positions, *out_first;
  const float* cos_sin;
  int64_t q_table;
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
  const uint32_t* x_sums;  // [rows, groups of 32 columns in whole records]: of sum_columns()
  bool gated;              // the parts are gate and up, and the output is silu(gate) * up
  // Of kernels/product/packed_many.cuh, where each run of k has blocks of its own.
  int runs, row_tiles;
  float* run_sums;    // [blocks, runs, a block's sums]
  uint32_t* arrived;  // a block: how many runs have written their sums; 0 before and after
};

// Whether a block holds all of x from the start: then its warps do not wait for each other at every step. Rounded up to
// whole records.
HEADRACE_BOTH inline int whole_x_bytes(const PackedProduct& p) {
  return (p.k + kRecordCols - 1) / kRecordCols * kRecordCols * 2 * p.rows;
}
HEADRACE_BOTH inline int whole_sums_bytes(const PackedProduct& p) {  // of each 32 columns of x
  return (p.k + kRecordCols - 1) / kRecordCols * (kRecordCols / 32) * 4 * p.rows;
}
inline bool has_whole_x(const PackedProduct& p) { return p.rows <= 8 && whole_x_bytes(p) <= 64 * 1024; }

constexpr int kMostFewRows = 16;  // up to here a block has all runs of k

// Sets first_block of the parts, with so many of their rows a block; the number of blocks.
int64_t place_parts(PackedProduct& product, int block_rows);

// The sums of each 32 columns of bf16 x, for PackedProduct::x_sums.
void sum_columns(const PackedProduct& product, uint32_t* sums, CudaStream& stream);
void packed_product_in_one(const PackedProduct& product, CudaStream& stream);   // k in one run
void packed_product_in_four(const PackedProduct& product, CudaStream& stream);  // in four
void packed_product_of_many(const PackedProduct& product, CudaStream& stream);  // in product.runs; more than few rows

// Types that few files have are multiplied by kernels of their own, so that they take no registers from the others. For
// parts of these types alone: all of the above but sum_columns(), which they do not need.
HEADRACE_BOTH constexpr bool is_other(WeightType type) { return type >= WeightType::kQ2K; }
void packed_product_of_others(const PackedProduct& product, CudaStream& stream);

// Of packed_product_of_many(), in four runs.
constexpr int kMostTileRows = 64, kTileOutputs = 128;  // of a block

}  // namespace headrace::kernels::cuda
