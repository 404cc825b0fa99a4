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
  DType w_type;   // type, or kF32 for weights that were unpacked from blocks
  bool unpacked;  // w was just unpacked from blocks: it is in a cache
};

struct ProductKernels {
  void (*part)(const ProductPart& part);
  // The same for w in blocks of `type`, and at most max_block_rows rows. The bits are those of part() with the weights'
  // values in block_type(). REQUIRES: the values are finite. room: [rows, k], for x in f32.
  void (*blocks)(const ProductPart& part, WeightType type, float* room);
  int64_t max_block_rows;
  int tile_cols;  // parts are best cut at multiples of this
  // The type of block weights' values in a product of `type`: kF32, or `type` if the set multiplies it faster.
  DType (*block_type)(DType type);
};
HEADRACE_DECLARE_ISA(ProductKernels, product_kernels)

}  // namespace headrace::kernels
