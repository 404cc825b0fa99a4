// The kernel behind CudaStream's copy_small(). Internal to offload/cuda.
#pragma once

#include <cstddef>

namespace headrace {

// Asynchronous; `stream` is a cudaStream_t whose device is current. The caller checks the launch.
void launch_small_copy(void* dst, const void* src, size_t bytes, void* stream);

}  // namespace headrace
