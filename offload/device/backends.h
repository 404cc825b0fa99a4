// The backends that open_device() selects from, one folder each. In a build without CUDA, CMake selects no_cuda.cc
// instead of the CUDA body. Any thread.
#pragma once

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "offload/device/device.h"
#include "offload/host/pages.h"

namespace headrace {

// Near 2^64 rounding would wrap to a size that fits; the unrounded size is rejected by the budget.
inline uint64_t rounded_pages(uint64_t bytes) { return bytes > UINT64_MAX - kPageBytes ? bytes : whole_pages(bytes); }

// Whole pages of host memory within a budget, which `free` frees.
template <typename Owner>
Owner map_within(Device& device, MemoryBudget& budget, uint64_t bytes, std::string_view what,
                 typename Owner::Free free) {
  if (bytes == 0) return Owner();
  const uint64_t rounded = rounded_pages(bytes);
  MemoryBudget::Reservation reservation = budget.reserve(rounded, what);
  void* const data = map_pages(rounded);
  if (data == nullptr) {
    throw_error(ExitCode::kDoesNotFit, "mmap", str(format_bytes(bytes), " for ", what, ": ", std::strerror(errno)),
                str("the system refuses what ", budget.flag(), " allows; set it lower"));
  }
  return Owner(device, data, bytes, free, std::move(reservation));
}

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
