// Launches a kernel on a stream and checks the launch. Host code, internal to kernels/.
#pragma once

#include <cuda_runtime_api.h>

#include "cache/base.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

struct Grid {
  int64_t x = 1, y = 1;
  int threads = 128;
  int shared_bytes = 0;
  int64_t z = 1;
};

// `name` is a literal.
template <typename... Params>
void launch_on(CudaStream& stream, const char* name, const Grid& grid, void (*kernel)(Params...), Params... params) {
  CHECK(grid.x > 0 && grid.x <= INT32_MAX && grid.y > 0 && grid.y < 65536, name, ": grid ", grid.x, " x ", grid.y);
  auto* const native = static_cast<cudaStream_t>(stream.native());
  CHECK(grid.z > 0 && grid.z < 65536, name, ": grid z ", grid.z);
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y), static_cast<unsigned>(grid.z));
  // More than 48 KB a block has to be asked for, on each device; what the kernel declares itself counts, too. A refusal
  // shows at the launch.
  constexpr int kMostDeclared = 16 * 1024;
  if (grid.shared_bytes > 48 * 1024 - kMostDeclared) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, grid.shared_bytes);
  }
  kernel<<<blocks, static_cast<unsigned>(grid.threads), static_cast<size_t>(grid.shared_bytes), native>>>(params...);
  stream.check_launch(name);
}

// Of the current device.
inline int multiprocessors() {
  int device = 0, count = 1;
  (void)cudaGetDevice(&device);
  (void)cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  return count;
}

}  // namespace headrace::kernels::cuda
