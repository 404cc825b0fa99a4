#include "offload/device/cuda/nvml.h"

#include <dlfcn.h>

#include <type_traits>

namespace headrace {
namespace {

// The parts of nvml.h that we use; NVML never changes the meaning of a function name.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;  // NOLINT(google-runtime-int): as the library has it
};
constexpr int kNvmlSuccess = 0;

struct Nvml {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*find)(const char* pci_bus_id, NvmlDevice* device) = nullptr;
  int (*memory)(NvmlDevice device, NvmlMemory* memory) = nullptr;

  Nvml() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);  // never unloaded
    if (library == nullptr) return;
    const auto load = [&](auto* function, const char* name) {
      *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    };
    load(&init, "nvmlInit_v2");
    load(&shutdown, "nvmlShutdown");
    load(&find, "nvmlDeviceGetHandleByPciBusId_v2");
    load(&memory, "nvmlDeviceGetMemoryInfo");
  }
  bool complete() const { return init && shutdown && find && memory; }
};

}  // namespace

std::optional<GpuMemory> read_gpu_memory(const std::string& pci_bus_id) noexcept {
  static const Nvml nvml;
  if (!nvml.complete() || nvml.init() != kNvmlSuccess) return std::nullopt;  // NVML counts init and shutdown calls
  NvmlDevice device = nullptr;
  NvmlMemory memory{};
  const bool read = nvml.find(pci_bus_id.c_str(), &device) == kNvmlSuccess &&
                    nvml.memory(device, &memory) == kNvmlSuccess && memory.total > 0;
  nvml.shutdown();
  if (!read) return std::nullopt;
  return GpuMemory{.total_bytes = memory.total, .free_bytes = memory.free};
}

}  // namespace headrace
