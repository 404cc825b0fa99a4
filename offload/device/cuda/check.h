// Converts CUDA status codes to our Error: the call, CUDA's name of the error and its text. For host code;
// CudaStream::check_launch() checks kernel launches. Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace headrace {

// "cudaErrorMemoryAllocation: out of memory"
std::string cuda_error_text(cudaError_t status);

// kDoesNotFit if memory ran out, else kInternal. `about` describes the purpose of the call; may be empty. Clears CUDA's
// last error, so that the next check does not report this one.
[[noreturn]] void throw_cuda_error(cudaError_t status, std::string_view call, std::string_view about = {});

inline void check_cuda(cudaError_t status, std::string_view call, std::string_view about = {}) {
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, call, about);
}

}  // namespace headrace
