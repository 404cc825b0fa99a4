#include "offload/device.h"

#include <cmath>

#include "cache/base.h"
#include "offload/backends.h"

namespace headrace {
namespace {

constexpr int kMaxThreads = 1024;

void check_options(const DeviceOptions& options) {
  if (options.threads < 0 || options.threads > kMaxThreads) {
    throw_error(ExitCode::kUsage, "--threads", str(options.threads, " is not between 1 and ", kMaxThreads),
                "0 takes the cores this process may use");
  }
  if (!std::isfinite(options.copy_gb_per_s) || options.copy_gb_per_s < 0) {
    throw_error(ExitCode::kUsage, "copy_gb_per_s", str(options.copy_gb_per_s, " is not a speed"), "0 does not pace");
  }
}

}  // namespace

std::unique_ptr<Device> open_device(const DeviceOptions& options) {
  check_options(options);
  const bool cuda = options.choice == DeviceChoice::kCuda || (options.choice == DeviceChoice::kAuto && cuda_usable());
  return cuda ? open_cuda_device(options) : open_cpu_device(options);
}

}  // namespace headrace
