// The backends that open_device() chooses from. Each is one folder; a build without CUDA has no_cuda.cc in the place of
// the CUDA body, chosen by CMake. Any thread.
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
// Null when no GPU can be used, or not the one asked for. Throws Error when one can, but not as asked: a --vram that it
// does not have.
std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options, NoCuda* no_cuda);

class Stopwatch;
std::unique_ptr<Stopwatch> make_cuda_stopwatch(Stream& stream);  // REQUIRES: a CUDA stream

bool cuda_usable() noexcept;  // this build has the body, and a GPU answers
std::vector<DeviceListing> list_cuda_devices();

}  // namespace headrace
