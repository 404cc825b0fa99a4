// Kernels around the matrix product: one that takes any shape, and what the start-up check of cuBLASLt's algorithms
// needs (product_plan.h). Launchers, asynchronous on the stream. Internal to kernels/cuda.
#pragma once

#include <cstdint>

#include "kernels/product.h"
#include "offload/cuda_stream.h"

namespace headrace::kernels::cuda {

// The product of any shape and alignment: a warp a column, each lane the k of its own place, in ascending order. Slow.
// An element's bits depend on k alone. Touches no padding.
void plain_product(const ProductParams& params, CudaStream& stream);

// out[row, col] += bias[col], out fp32 and bias of `type`.
void add_bias(float* out, const void* bias, DType type, int64_t rows, int64_t n, CudaStream& stream);

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

}  // namespace headrace::kernels::cuda
