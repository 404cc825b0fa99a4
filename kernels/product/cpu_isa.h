// The inner part of the matrix product, one table an instruction set (isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/cpu/isa.h"
#include "kernels/weights/type.h"

namespace headrace::kernels {

// A product's operands as in ProductParams, and the part of the output that one call computes.
struct ProductPart {
  const void* x;         // [rows, k]
  const void* w;         // [col_end - col_begin, k]: the part's own columns
  const void* bias;      // [n] or null
  const void* residual;  // [rows, n] or null
  void* out;             // [rows, n]
  int64_t n, k;
  int64_t row_begin, row_end, col_begin, col_end;
  DType type, out_type;
  bool unpacked;  // w was unpacked from blocks a moment ago: it is in a cache, and of the type unpacked_type() returns
};

struct ProductKernels {
  void (*part)(const ProductPart& part);
  // The same where w is in blocks of `type`, for at most max_block_rows rows. REQUIRES: its weights are finite.
  void (*blocks)(const ProductPart& part, WeightType type);
  int64_t max_block_rows;
  int tile_cols;  // parts are best cut at multiples of this
  // What blocks are unpacked to for a product of `type`: `type` itself, or kF32, which holds the same values.
  DType (*unpacked_type)(DType type);
};
HEADRACE_DECLARE_ISA(ProductKernels, product_kernels)

}  // namespace headrace::kernels
