#include "offload/device/cuda/check.h"

#include "cache/base.h"

namespace headrace {

std::string cuda_error_text(cudaError_t status) {
  return str(cudaGetErrorName(status), ": ", cudaGetErrorString(status));
}

void throw_cuda_error(cudaError_t status, std::string_view call, std::string_view about) {
  (void)cudaGetLastError();
  const ExitCode code = status == cudaErrorMemoryAllocation ? ExitCode::kDoesNotFit : ExitCode::kInternal;
  throw_error(code, std::string(call), str(cuda_error_text(status), about.empty() ? "" : ", ", about));
}

}  // namespace headrace
