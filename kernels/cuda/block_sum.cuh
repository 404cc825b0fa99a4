// A running sum over the threads of a block. Device code, internal to kernels/.
#pragma once

#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

// The sum of the values of all threads before this one; `all`: of all threads. All threads of the block call it, which
// are whole warps.
__device__ inline int sum_before(int value, int* all) {
  __shared__ int of_warp[32];
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  int sum = value;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, apart);
    if (lane >= apart) sum += other;
  }
  __syncthreads();  // what was there has been read
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  int before = sum - value;
  *all = 0;
  for (int w = 0; w < static_cast<int>(blockDim.x / 32); ++w) {
    if (w < warp) before += of_warp[w];
    *all += of_warp[w];
  }
  return before;
}

}  // namespace headrace::kernels::cuda
