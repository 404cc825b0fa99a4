// Kernels around the matrix product: one that takes any shape, one that ends a product whose sums were left in fp32,
// and what the start-up check of cuBLASLt's algorithms needs (kernels/product/cuda_plan.h). Launchers, asynchronous on
// the stream. Internal to kernels/cuda.
#pragma once

#include <cstdint>

#include "kernels/product/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// The product of any shape, alignment and weight: a warp a column, each lane the k of its own place, in ascending
// order. Slow. An element's bits depend on k alone. Touches no padding.
void plain_product(const ProductParams& params, CudaStream& stream);

// Ends some columns of a product: out = sums + bias + residual, rounded once. The params are the whole product's.
struct ProductSums {
  const float* data;  // [params.rows, cols]
  int64_t first_col, cols;
};
void finish_product(const ProductParams& params, const ProductSums& sums, CudaStream& stream);

// Rows for the check: those that the pattern marks hold one and the same row, the others are all different.
struct CheckRows {
  void* data;  // [rows, cols]
  DType type;
  int64_t rows, cols;
  int pattern;  // [0, kCheckPatterns)
};
constexpr int kCheckPatterns = 4;
void fill_check_rows(const CheckRows& rows, CudaStream& stream);
// Adds to *mismatches how many of the marked rows are not, bit for bit, `expected` ([cols]).
void compare_check_rows(const CheckRows& rows, const void* expected, int32_t* mismatches, CudaStream& stream);
// Adds to *mismatches how many elements of row 0, in `got`, are further from the sum in fp32 than one rounding. The
// params are those of the product, but for `out`; if there is a residual, `residual` is its row 0.
void compare_with_sum(const ProductParams& params, const void* got, int32_t* mismatches, CudaStream& stream);

}  // namespace headrace::kernels::cuda
