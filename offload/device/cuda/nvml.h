// A GPU's memory as the driver's management library tells it: all processes' use, and without making a context, which
// takes memory itself. The library is looked for at run time and may be missing. Owns nothing. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace headrace {

struct GpuMemory {
  uint64_t total_bytes = 0, free_bytes = 0;
};

// None when the library, or the GPU in it, is not found. `pci_bus_id` as cudaDeviceGetPCIBusId() has it.
std::optional<GpuMemory> read_gpu_memory(const std::string& pci_bus_id) noexcept;

}  // namespace headrace
