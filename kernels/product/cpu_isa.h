// The inner part of the matrix product, one table per instruction set (isa.h). Serial; any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/cpu/isa.h"
#include "kernels/weights/type.h"

namespace headrace::kernels {

// A product's operands, as in ProductParams, and the part of the output that one call computes.
struct ProductPart {
  const void* x;         // [rows, k]
  const void* w;         // [col_end - col_begin, k]: the part's own columns
  const void* bias;      // [n] or null
  const void* residual;  // [rows, n] of out_type, or null
  void* out;             // [rows, n]
  int64_t n, k;
  int64_t row_begin, row_end, col_begin, col_end;
  DType type, out_type;
  bool unpacked;  // w was just unpacked from blocks: it is in a cache, and its type is unpacked_type()
};

struct ProductKernels {
  void (*part)(const ProductPart& part);
  // The same for w in blocks of `type`, and at most max_block_rows rows. REQUIRES: its weights are finite.
  void (*blocks)(const ProductPart& part, WeightType type);
  int64_t max_block_rows;
  int tile_cols;  // parts are best cut at multiples of this
  // The type to which blocks are unpacked for a product of `type`: `type`, or kF32 with the same values.
  DType (*unpacked_type)(DType type);
};
HEADRACE_DECLARE_ISA(ProductKernels, product_kernels)

}  // namespace headrace::kernels
