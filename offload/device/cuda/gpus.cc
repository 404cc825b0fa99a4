#include "offload/device/cuda/gpus.h"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>

#include "offload/device/cuda/check.h"
#include "offload/device/cuda/cublas_lt.h"
#include "offload/device/cuda/cuda_errors.h"

namespace headrace {
namespace {

std::string none_because(cudaError_t status) {
  DriverState state;
  (void)cudaDriverGetVersion(&state.driver_version);
  (void)cudaRuntimeGetVersion(&state.build_version);
  (void)cudaGetLastError();
  state.too_old = status == cudaErrorInsufficientDriver;
  if (status != cudaSuccess && status != cudaErrorNoDevice) state.error = cuda_error_text(status);
  state.visible_devices = std::getenv("CUDA_VISIBLE_DEVICES");
  return why_no_gpu(state);
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
  gpu.unusable = why_unusable(gpu);
  if (gpu.unusable.empty()) gpu.unusable = why_no_cublas_lt(cublas_lt_error());
  return gpu;
}

}  // namespace

Gpus find_gpus() {
  Gpus gpus;
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    gpus.none = none_because(status);
    return gpus;
  }
  for (int index = 0; index < count; ++index) gpus.all.push_back(read_gpu(index));
  return gpus;
}

}  // namespace headrace
