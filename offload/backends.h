// The backends that open_device() chooses from. Each is one folder; a build without CUDA has no_cuda.cc in the place of
// the CUDA body, chosen by CMake. Any thread.
#pragma once

#include <memory>

#include "offload/device.h"

namespace headrace {

std::unique_ptr<Device> open_cpu_device(const DeviceOptions& options);

bool cuda_usable() noexcept;                                             // this build has the body, and a GPU answers
std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options);  // throws Error(kUsage) if not usable

}  // namespace headrace
