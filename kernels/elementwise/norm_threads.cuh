// The order of RMSNorm's sum of squares on CUDA, for each kernel that has one: of `norm_threads(cols)` threads, thread
// i adds the squares of its chunks of eight elements, from element 8 i on and as many apart as all threads have; lanes
// are added by halves, then warps in order. Depends on the columns alone. Pure; host and device code.
#pragma once

#include <cstdint>

namespace headrace::kernels::cuda {

constexpr int kNormThreads = 512;  // at most
constexpr int kNormKept = 2;       // chunks of a thread that need no second pass

__host__ __device__ constexpr int norm_threads(int64_t cols) {
  const int64_t chunks = (cols + 7) / 8, wanted = ((chunks + kNormKept - 1) / kNormKept + 31) / 32 * 32;
  return static_cast<int>(wanted < kNormThreads ? wanted : kNormThreads);
}

}  // namespace headrace::kernels::cuda
