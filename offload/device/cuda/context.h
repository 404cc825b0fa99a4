// A GPU's context: made once a process, when its first device is opened, and measured then, for it takes device memory
// that no allocation of ours shows. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "offload/device/cuda/gpus.h"
#include "offload/device/cuda/nvml.h"

namespace headrace {

struct CudaContext {
  uint64_t taken_bytes = 0;                  // by the context
  uint64_t later_bytes = 0;                  // that CUDA takes as it goes on
  uint64_t total_bytes = 0, free_bytes = 0;  // of the GPU, with the context made
  std::string unusable;                      // why none could be made; empty: it was

  // As it was, or would be, without the context: what --vram is about.
  GpuMemory memory() const { return {.total_bytes = total_bytes, .free_bytes = free_bytes + taken_bytes}; }
};

// Makes the GPU current for the calling thread.
CudaContext make_context(const Gpu& gpu);

}  // namespace headrace
