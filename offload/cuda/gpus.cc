#include "offload/cuda/gpus.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>

#include "cache/base.h"
#include "offload/cuda/check.h"

namespace headrace {
namespace {

constexpr int kLeastMajor = 8;  // sm_80: cp.async and bf16 mma.sync

// CUDA's versions are 1000 * major + 10 * minor.
std::string version_text(int version) { return str(version / 1000, ".", version % 1000 / 10); }

std::string why_none(cudaError_t status) {
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);  // 0: no driver
  (void)cudaRuntimeGetVersion(&runtime);
  (void)cudaGetLastError();
  if (driver == 0) return "no NVIDIA driver is installed here (its libcuda.so.1 is not found)";
  if (status == cudaErrorInsufficientDriver) {
    return str("the NVIDIA driver is too old: it has CUDA ", version_text(driver), ", this build needs ",
               version_text(runtime), " (update the driver)");
  }
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  const std::string narrowed = visible == nullptr ? "" : str(", with CUDA_VISIBLE_DEVICES='", visible, "'");
  if (status == cudaErrorNoDevice || status == cudaSuccess) return "the NVIDIA driver shows no GPU" + narrowed;
  return str("the NVIDIA driver (CUDA ", version_text(driver), ") answers ", cuda_error_text(status), narrowed);
}

Gpu read_gpu(int index) {
  Gpu gpu;
  gpu.index = index;
  cudaDeviceProp properties{};
  cudaError_t status = cudaGetDeviceProperties(&properties, index);
  std::array<char, 64> bus_id{};
  if (status == cudaSuccess) status = cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    gpu.unusable = cuda_error_text(status);
    return gpu;
  }
  gpu.name = properties.name;
  gpu.pci_bus_id = bus_id.data();
  gpu.major = properties.major;
  gpu.minor = properties.minor;
  gpu.total_bytes = properties.totalGlobalMem;
  if (gpu.major < kLeastMajor) {
    gpu.unusable = str(gpu.name, " has compute capability ", gpu.major, ".", gpu.minor, ", ", kLeastMajor,
                       ".0 is needed (an A100, an RTX 30 or a newer one)");
  }
  return gpu;
}

}  // namespace

Gpus find_gpus() {
  Gpus gpus;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    gpus.none = why_none(status);
    return gpus;
  }
  for (int index = 0; index < count; ++index) gpus.all.push_back(read_gpu(index));
  return gpus;
}

}  // namespace headrace
