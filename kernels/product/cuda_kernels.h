// Kernels around the matrix product: a product for any shape, a kernel that finishes a product whose sums are in fp32,
// and the kernels of the check of cuBLASLt's algorithms (kernels/product/cuda_plan.h). Launchers, asynchronous on the
// stream. Internal to the op.
#pragma once

#include <cstdint>

#include "kernels/product/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// The product for any shape, alignment and weight. A warp computes a column; each lane adds every 32nd k, in ascending
// order. It is slow. An element's bits depend on k alone. Padding is neither read nor written.
void plain_product(const ProductParams& params, CudaStream& stream);

// Finishes some columns of a product: out = sums + bias + residual, rounded once. The params are the whole product's.
struct ProductSums {
  const float* data;  // [params.rows, cols]
  int64_t first_col, cols;
};
void finish_product(const ProductParams& params, const ProductSums& sums, CudaStream& stream);

// Rows for the check: all rows that the pattern marks are equal, the others are all different.
struct CheckRows {
  void* data;  // [rows, cols]
  DType type;
  int64_t rows, cols;
  int pattern;  // [0, kCheckPatterns)
};
constexpr int kCheckPatterns = 4;
void fill_check_rows(const CheckRows& rows, CudaStream& stream);
// Adds to *mismatches the number of marked rows that differ in any bit from `expected` ([cols]).
void compare_check_rows(const CheckRows& rows, const void* expected, int32_t* mismatches, CudaStream& stream);
// Adds to *mismatches the number of elements of row 0, in `got`, that differ from the fp32 sum by more than one
// rounding. The params are the product's, except `out`; a residual's row 0 is at `residual`.
void compare_with_sum(const ProductParams& params, const void* got, int32_t* mismatches, CudaStream& stream);

}  // namespace headrace::kernels::cuda
