// The error of a kernel without a CUDA body. A build without CUDA cannot make a CUDA stream, so reaching it means that
// the build and the device layer disagree. Pure; from any thread.
#pragma once

#include "cache/base.h"

namespace headrace::kernels::cuda {

[[noreturn]] inline void no_body(const char* op) {
  throw_error(ExitCode::kUsage, str("kernel ", op), "this build has no CUDA body for it",
              "use --device cpu, or build where nvcc is found");
}

}  // namespace headrace::kernels::cuda
