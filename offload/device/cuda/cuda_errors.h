// Texts for a GPU that cannot be used, or not as requested. Pure functions of the findings, without CUDA, so each can
// be tested on any machine. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "offload/device/cuda/gpus.h"
#include "offload/device/cuda/nvml.h"

namespace headrace {

struct DriverState {
  int driver_version = 0, build_version = 0;  // CUDA's: 1000 * major + 10 * minor; 0: no driver
  bool too_old = false;                       // in CUDA's judgement
  std::string error;                          // another CUDA error; empty: CUDA found no GPU
  const char* visible_devices = nullptr;      // CUDA_VISIBLE_DEVICES
};
std::string why_no_gpu(const DriverState& state);

// Empty: the GPU can be used.
std::string why_unusable(const Gpu& gpu);
// `error`: the system's message when the library was opened, its name included. Empty: the library can be used.
std::string why_no_cublas_lt(const std::string& error);
// Too little free memory for a context and a useful model. Empty: enough is free.
std::string why_full(const GpuMemory& memory);

// Throws Error(kDoesNotFit) if `vram_bytes` exceeds the GPU's memory, or what other processes leave of it. 0: not set.
void check_vram(const Gpu& gpu, const GpuMemory& memory, uint64_t vram_bytes);

// "800.00 MiB of 24.00 GiB are free"
std::string memory_text(const GpuMemory& memory);

}  // namespace headrace
