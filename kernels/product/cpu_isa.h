// The inner part of the matrix product, one table an instruction set (isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/cpu/isa.h"

namespace headrace::kernels {

// A product's operands as in ProductParams, and the part of the output that one call computes.
struct ProductPart {
  const void* x;         // [rows, k]
  const void* w;         // [n, k]
  const void* bias;      // [n] or null
  const void* residual;  // [rows, n] or null
  void* out;             // [rows, n]
  int64_t n, k;
  int64_t row_begin, row_end, col_begin, col_end;
  DType type, out_type;
};

struct ProductKernels {
  void (*part)(const ProductPart& part);
  int tile_cols;  // parts are best cut at multiples of this
};
HEADRACE_DECLARE_ISA(ProductKernels, product_kernels)

}  // namespace headrace::kernels
