// What a kernel without a CUDA body says. A CUDA stream cannot be made in a build without CUDA, so that reaching it
// means that the build is not what the device layer thinks it is. Pure; from any thread.
#pragma once

#include "cache/base.h"

namespace headrace::kernels::cuda {

[[noreturn]] inline void no_body(const char* op) {
  throw_error(ExitCode::kUsage, str("kernel ", op), "this build has no CUDA body for it",
              "use --device cpu, or build where nvcc is found");
}

}  // namespace headrace::kernels::cuda
