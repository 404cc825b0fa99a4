// Why a GPU cannot be used, or not as asked, in words and numbers. Pure functions of what was found, without CUDA, so
// that each can be tested without the machine that it is about. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "offload/device/cuda/gpus.h"
#include "offload/device/cuda/nvml.h"

namespace headrace {

struct DriverState {
  int driver_version = 0, build_version = 0;  // CUDA's: 1000 * major + 10 * minor; 0: no driver
  bool too_old = false;                       // as CUDA judges it
  std::string error;                          // another of CUDA's errors, or empty: it just counted no GPU
  const char* visible_devices = nullptr;      // CUDA_VISIBLE_DEVICES
};
std::string why_no_gpu(const DriverState& state);

// Empty: it can be used.
std::string why_unusable(const Gpu& gpu);
// `error`: what the system said when the library was opened, its name among that. Empty: it was, and can be used.
std::string why_no_cublas_lt(const std::string& error);
// With this little there is no room for a context and a model that is worth a GPU. Empty: there is enough.
std::string why_full(const GpuMemory& memory);

// Throws Error(kDoesNotFit) if `vram_bytes` is above what the GPU has, or what others leave of it. 0: not asked.
void check_vram(const Gpu& gpu, const GpuMemory& memory, uint64_t vram_bytes);

// "800.00 MiB of 24.00 GiB are free"
std::string memory_text(const GpuMemory& memory);

}  // namespace headrace
