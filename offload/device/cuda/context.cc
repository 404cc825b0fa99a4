#include "offload/device/cuda/context.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <map>
#include <optional>

#include "cache/base.h"
#include "offload/device/cuda/check.h"
#include "offload/device/cuda/cuda_errors.h"
#include "offload/host/thread_annotations.h"

namespace headrace {
namespace {

// Assumed size of a context that cannot be measured: more than any seen (an H200's is about 600 MiB).
constexpr uint64_t kAssumedContext = 640 * kMiB;
// CUDA loads kernels on first use, and allocates in steps of 2 MiB.
constexpr uint64_t kTakenLater = 64 * kMiB;

CudaContext refused(const Gpu& gpu, const std::string& why) {
  CudaContext context;
  context.unusable = str("cuda:", gpu.index, ", ", gpu.name, ": ", why);
  return context;
}

// Bounded, because another process may allocate or free at the same moment.
uint64_t measured_bytes(const std::optional<GpuMemory>& before, const std::optional<GpuMemory>& after) {
  if (!before || !after || after->free_bytes >= before->free_bytes) return kAssumedContext;
  return std::min(before->free_bytes - after->free_bytes, 2 * kAssumedContext);
}

}  // namespace

CudaContext make_context(const Gpu& gpu) {
  static Mutex mutex;
  static std::map<int, uint64_t> measured GUARDED_BY(mutex);  // by index; a context stays for the process's life
  const MutexLock lock(mutex);
  const bool first = measured.count(gpu.index) == 0;
  const std::optional<GpuMemory> before = read_gpu_memory(gpu.pci_bus_id);
  if (first && before && !why_full(*before).empty()) return refused(gpu, why_full(*before));
  cudaError_t status = cudaSetDevice(gpu.index);
  if (status == cudaSuccess) status = cudaFree(nullptr);  // makes the context
  size_t free_bytes = 0, total_bytes = 0;
  if (status == cudaSuccess) status = cudaMemGetInfo(&free_bytes, &total_bytes);
  if (status != cudaSuccess) {
    (void)cudaGetLastError();
    return refused(gpu, cuda_error_text(status) + (before ? "; " + memory_text(*before) : ""));
  }
  CudaContext context;
  context.total_bytes = std::max<uint64_t>(total_bytes, gpu.total_bytes);
  context.free_bytes = free_bytes;
  if (first) {
    const uint64_t now = measured_bytes(before, read_gpu_memory(gpu.pci_bus_id));
    measured.emplace(gpu.index, now);
  }
  context.taken_bytes = measured.at(gpu.index);
  context.later_bytes = kTakenLater;
  // For systems where the management library could not report it before.
  if (first && !why_full(context.memory()).empty()) return refused(gpu, why_full(context.memory()));
  return context;
}

}  // namespace headrace
