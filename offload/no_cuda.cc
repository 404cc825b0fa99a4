// Stands in for the CUDA body in a build that has none.
#include "cache/base.h"
#include "offload/backends.h"

namespace headrace {

bool cuda_usable() noexcept { return false; }

std::unique_ptr<Device> open_cuda_device(const DeviceOptions&) {
  throw_error(ExitCode::kUsage, "--device", "cuda: this build has no CUDA backend", "use --device cpu, or auto");
}

}  // namespace headrace
