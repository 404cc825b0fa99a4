#include "cli/unused_gpu.h"

#include <filesystem>

namespace headrace {

std::string unused_gpu(const std::string& devices) {
#ifdef HEADRACE_HAVE_CUDA
  (void)devices;
  return {};
#else
  std::error_code unknown;
  if (!std::filesystem::exists(devices + "/nvidia0", unknown)) return {};
  return "this program was built for the CPU only, so it does not use the NVIDIA GPU of this machine: install nvcc 12 "
         "or "
         "newer and build it again";
#endif
}

}  // namespace headrace
