#include <cuda_runtime.h>

#include "offload/device/cuda_stream.h"
#include "tests/offload/device/gate.h"

namespace headrace {
namespace {

__device__ uint64_t now_ns() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
  return ns;
}

__global__ void hold_kernel(const volatile uint32_t* word, uint64_t limit_ns) {
  const uint64_t begin = now_ns();
  while (*word == 0 && now_ns() - begin < limit_ns) __nanosleep(1000);
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------

void hold_cuda(Stream& stream, const uint32_t* word, std::chrono::nanoseconds limit) {
  CudaStream& on = cuda_stream(stream);
  hold_kernel<<<1, 1, 0, static_cast<cudaStream_t>(on.native())>>>(word, static_cast<uint64_t>(limit.count()));
  on.check_launch("hold_kernel");
}

}  // namespace headrace
