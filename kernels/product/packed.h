// The decode path's product with quantised weights (kernels/weights/cuda_layout.h): one kernel for any number of rows,
// one launch for all parts of a weight. The order of an output's sum is fixed by n and k alone: k is divided into one
// run or four, the tensor cores add each in order, and the runs' sums are added in order in f32. So a row's bits depend
// neither on the other rows nor on the GPU, and rows need no padding. Plain bf16 parts are read as they are and give
// the same bits as packed ones of the same values. Takes no memory. Internal to kernels/cuda.
#pragma once

#include "kernels/product/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// False, and nothing is enqueued, for what it does not take: it takes x, bias and residual in bf16, and k in multiples
// of 8 with x and the parts aligned to 16 bytes.
bool packed_product(const ProductParams& params, CudaStream& stream);

// The kernel's parameters.
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
  bool out_f32;
  int rows, n, k;
};
void packed_product_in_one(const PackedProduct& product, CudaStream& stream);   // k in one run
void packed_product_in_four(const PackedProduct& product, CudaStream& stream);  // in four

}  // namespace headrace::kernels::cuda
