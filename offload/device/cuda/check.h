// CUDA's status codes as our Error: the call, CUDA's name of the error and its text. For host code; kernels' launches
// are checked by CudaStream::check_launch(). Any thread.
#pragma once

#include <cuda_runtime_api.h>

#include <string>
#include <string_view>

namespace headrace {

// "cudaErrorMemoryAllocation: out of memory"
std::string cuda_error_text(cudaError_t status);

// kDoesNotFit where memory is what lacks, else kInternal. `about` says what the call was for; may be empty. Clears
// CUDA's own note of the last error, so that the next check does not find this one.
[[noreturn]] void throw_cuda_error(cudaError_t status, std::string_view call, std::string_view about = {});

inline void check_cuda(cudaError_t status, std::string_view call, std::string_view about = {}) {
  if (status != cudaSuccess) [[unlikely]]
    throw_cuda_error(status, call, about);
}

}  // namespace headrace
