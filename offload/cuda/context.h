// A GPU's context: made once a process, when its first device is opened, and measured then, for it takes device memory
// that no allocation of ours shows. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "offload/cuda/gpus.h"

namespace headrace {

struct CudaContext {
  uint64_t taken_bytes = 0;                  // by CUDA itself, now and later
  uint64_t total_bytes = 0, free_bytes = 0;  // of the GPU, with the context made
  std::string unusable;                      // why none could be made; empty: it was

  // What a process could have had in all when the context was not there yet.
  uint64_t available_bytes() const { return free_bytes + taken_bytes; }
};

// Makes the GPU current for the calling thread.
CudaContext make_context(const Gpu& gpu);

}  // namespace headrace
