// The CUDA context of a GPU, made once per process when its first device is opened. Its device memory is measured then,
// because no allocation of ours shows it. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "offload/device/cuda/gpus.h"
#include "offload/device/cuda/nvml.h"

namespace headrace {

struct CudaContext {
  uint64_t taken_bytes = 0;                  // by the context
  uint64_t later_bytes = 0;                  // that CUDA allocates later
  uint64_t total_bytes = 0, free_bytes = 0;  // of the GPU, with the context made
  std::string unusable;                      // why the context could not be made; empty: it was made

  // Memory without the context, which is what --vram refers to.
  GpuMemory memory() const { return {.total_bytes = total_bytes, .free_bytes = free_bytes + taken_bytes}; }
};

// Makes the GPU current for the calling thread.
CudaContext make_context(const Gpu& gpu);

}  // namespace headrace
