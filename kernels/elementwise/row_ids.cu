#include "kernels/cuda/launch.cuh"
#include "kernels/elementwise/bodies.h"

namespace headrace::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Grid: blocks of elements of out.
__global__ void __launch_bounds__(kThreads) row_ids_kernel(RowIdsParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= p.rows * p.count) return;
  p.out[i] = static_cast<int32_t>(p.ids[i / p.count] * p.stride + p.first + i % p.count);
}

}  // namespace

void row_ids(const RowIdsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "row_ids", {ceil_div(params.rows * params.count, kThreads), 1, kThreads},
            row_ids_kernel, params);
}

}  // namespace headrace::kernels::cuda
