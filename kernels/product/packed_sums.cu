#include "kernels/cuda/launch.cuh"
#include "kernels/product/packed.h"
#include "kernels/product/packed_fragments.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kWarps = 4;

// A warp sums the eight groups of a record of one row. Grid: records / warps x rows.
__global__ void __launch_bounds__(32 * kWarps) sum_columns_kernel(const char* x, int k, uint32_t* sums) {
  const int lane = static_cast<int>(threadIdx.x % 32), records = (k + kRecordCols - 1) / kRecordCols;
  const int record = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x / 32);
  if (record >= records) return;
  const int64_t row = blockIdx.y;
  const int col = record * kRecordCols + lane * 8;
  const uint4 none{}, part = col < k ? *reinterpret_cast<const uint4*>(x + (row * k + col) * 2) : none;
  const uint32_t word = word_of_sum(part, lane);
  if (lane < 8) sums[(row * records + record) * 8 + lane % 4 * 2 + lane / 4] = word;
}

}  // namespace

void sum_columns(const PackedProduct& product, uint32_t* sums, CudaStream& stream) {
  launch_on(stream, "sum_columns", {ceil_div(product.k, kRecordCols * kWarps), product.rows, 32 * kWarps},
            sum_columns_kernel, static_cast<const char*>(product.x), product.k, sums);
}

}  // namespace headrace::kernels::cuda
