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

// The functions below return false, and enqueue nothing, for a product that this kernel does not support. It supports
// bf16, and k in multiples of 8 with x and the parts aligned to 16 bytes.
bool packed_normalises(const ProductParams& params);  // whether it applies the input's norm: for few rows
bool packed_product(const ProductParams& params, CudaStream& stream);
// Computes gated_product() in one launch, to `activated`. Supports few rows, with gate and up of one type.
bool packed_gated_product(const ProductParams& params, void* activated, CudaStream& stream);

// Computes rotated_product() in one launch. Supports few rows, without norms of heads, with heads whose halves are an
// even number of whole tiles.
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
  const uint32_t* x_sums;  // [rows of x, groups of 32 columns in whole records], by sum_columns()
  const int32_t* from;     // [rows]: the row of x of each row; null: its own. For shapes that gather
  bool gated;              // the parts are gate and up, and the output is activation(gate) * up
  Activation activation;
  // For kernels/product/packed_many.cuh, in which each run of k has its own blocks.
  int runs, row_tiles;
  float* run_sums;    // [blocks, runs, a block's sums]
  uint32_t* arrived;  // a block: how many runs have written their sums; 0 before and after
};

// Bytes of all of x, in whole records. A block that holds all of x (has_whole_x()) need not synchronize its warps at
// every step.
HEADRACE_BOTH inline int whole_x_bytes(const PackedProduct& p) {
  return (p.k + kRecordCols - 1) / kRecordCols * kRecordCols * 2 * p.rows;
}
HEADRACE_BOTH inline int whole_sums_bytes(const PackedProduct& p) {  // sums over each 32 columns of x
  return (p.k + kRecordCols - 1) / kRecordCols * (kRecordCols / 32) * 4 * p.rows;
}
inline bool has_whole_x(const PackedProduct& p) { return p.rows <= 8 && whole_x_bytes(p) <= 64 * 1024; }

// Divides a single part into two of whole tiles. True: there are two parts with equal rows and types.
bool halve_parts(PackedProduct* product);

constexpr int kMaxFewRows = 16;  // up to here one block computes all runs of k

// Sets first_block of the parts, with `block_rows` of their rows in a block. Returns the number of blocks.
int64_t place_parts(PackedProduct& product, int block_rows);

// Writes the sums over each 32 columns of bf16 x, for PackedProduct::x_sums.
void sum_columns(const PackedProduct& product, uint32_t* sums, CudaStream& stream);
void packed_product_in_one(const PackedProduct& product, CudaStream& stream);   // k in one run
void packed_product_in_four(const PackedProduct& product, CudaStream& stream);  // in four
void packed_product_of_many(const PackedProduct& product, CudaStream& stream);  // in product.runs; more than few rows

// Types that few files have, and MXFP4, which matrices of experts have, are multiplied by separate kernels, so that
// they use no registers of the others. For parts of these types only. Replaces all of the above except sum_columns(),
// which it does not need.
HEADRACE_BOTH constexpr bool is_other(WeightType type) { return type >= WeightType::kQ2K && !is_grid(type); }
void packed_product_of_others(const PackedProduct& product, CudaStream& stream);
void packed_product_of_grids(const PackedProduct& product, CudaStream& stream);  // the same of is_grid() types

// The largest tile of a block of packed_product_of_many() in four runs: rows of x, and outputs.
constexpr int kMaxTileRows = 64, kTileOutputs = 128;

}  // namespace headrace::kernels::cuda
