// A GPU's memory as the driver's management library reports it: the use of all processes, without a CUDA context, which
// would take memory itself. The library is loaded at run time and may be missing. Owns nothing. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

struct GpuMemory {
  uint64_t total_bytes = 0, free_bytes = 0;
};

// None if the library, or the GPU in it, is not found. `pci_bus_id` as from cudaDeviceGetPCIBusId().
std::optional<GpuMemory> read_gpu_memory(const std::string& pci_bus_id) noexcept;

}  // namespace headrace
