// The backends that open_device() selects from, one folder each. In a build without CUDA, CMake selects no_cuda.cc
// instead of the CUDA body. Any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cache/base.h"
#include "offload/device/device.h"

namespace headrace {

std::unique_ptr<Device> open_cpu_device(const DeviceOptions& options);

// Why no GPU can be used.
struct NoCuda {
  ExitCode code = ExitCode::kUsage;
  std::string why;
};
// Null if no GPU, or not the requested one, can be used. Throws Error if the GPU can be used but not as requested: a
// --vram that it does not have.
std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options, NoCuda* no_cuda);

class Stopwatch;
std::unique_ptr<Stopwatch> make_cuda_stopwatch(Stream& stream);  // REQUIRES: a CUDA stream

bool cuda_usable() noexcept;  // this build has the CUDA body, and a GPU responds
std::vector<DeviceListing> list_cuda_devices();

}  // namespace headrace
