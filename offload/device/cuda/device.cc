// The CUDA backend's device: device memory from cudaMalloc; pinned memory that we map and register with CUDA, so that
// others (io_uring) can register the same pages.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <fstream>
#include <utility>

#include "offload/device/backends.h"
#include "offload/device/cuda/check.h"
#include "offload/device/cuda/context.h"
#include "offload/device/cuda/cuda_errors.h"
#include "offload/device/cuda/gpus.h"
#include "offload/device/cuda/nvml.h"
#include "offload/device/cuda/stream.h"
#include "offload/device/cuda/trace.h"
#include "offload/host/host_limits.h"

namespace headrace {
namespace {

constexpr uint64_t kLeftToOthers = 512 * kMiB;  // left free for a desktop, for example (docs/design.md, section 11)
constexpr int kTouchThreads = 16;               // beyond this number memory bandwidth is the limit

void free_device(Device&, void* data, uint64_t) noexcept {
  (void)cudaFree(data);
  (void)cudaGetLastError();
}

void free_pinned(Device&, void* data, uint64_t bytes) noexcept {
  (void)cudaHostUnregister(data);
  (void)cudaGetLastError();
  unmap_pages(data, whole_pages(bytes));
}

uint64_t vram_limit(const CudaContext& context, const DeviceOptions& options) {
  if (options.vram_bytes != 0) return options.vram_bytes;
  return context.memory().free_bytes - std::min(kLeftToOthers, context.free_bytes);
}

// The version of the kernel module; in a container that hides it, the CUDA version that the driver supports.
std::string driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  if (file >> version) return version;
  int can = 0;
  (void)cudaDriverGetVersion(&can);
  return str("CUDA ", can / 1000, ".", can % 1000 / 10);
}

class CudaDevice final : public Device {
 public:
  CudaDevice(const Gpu& gpu, bool one_of_many, const CudaContext& context, const HostLimits& limits,
             const DeviceOptions& options)
      : gpu_(gpu.index),
        bus_id_(gpu.pci_bus_id),
        name_(one_of_many ? str(gpu.name, " (cuda:", gpu.index, ")") : gpu.name),
        threads_(options.threads != 0 ? options.threads : limits.cores),
        host_mem_("--host-mem", options.host_mem_bytes != 0 ? options.host_mem_bytes : limits.default_host_mem()),
        vram_("--vram", vram_limit(context, options)),
        context_(vram_.reserve(context.taken_bytes + context.later_bytes, "CUDA itself")),
        setup_(*this, gpu_, "setup", StreamRole::kCopy) {}

  Backend backend() const override { return Backend::kCuda; }
  std::string name() const override { return name_; }
  std::string driver() const override { return driver_version(); }
  std::string pci_bus_id() const override { return bus_id_; }
  int threads() const override { return threads_; }

  std::unique_ptr<Event> make_event() override { return std::make_unique<CudaEvent>(gpu_); }
  std::unique_ptr<TraceClock> make_trace_clock() override { return std::make_unique<CudaTraceClock>(gpu_); }

  DeviceBuffer allocate(uint64_t bytes, std::string_view what) override;
  PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) override;

  MemoryBudget& vram() override { return vram_; }
  MemoryBudget& host_mem() override { return host_mem_; }

 protected:
  std::unique_ptr<Stream> new_stream(std::string_view name, StreamRole role) override {
    return std::make_unique<CudaStreamBody>(*this, gpu_, name, role);
  }

 private:
  [[noreturn]] void throw_full(cudaError_t status, uint64_t bytes, std::string_view what) const;

  const int gpu_;
  const std::string bus_id_, name_;
  const int threads_;
  MemoryBudget host_mem_;
  MemoryBudget vram_;
  MemoryBudget::Reservation context_;
  CudaStreamBody setup_;  // zeroes new buffers
};

DeviceBuffer CudaDevice::allocate(uint64_t bytes, std::string_view what) {
  if (bytes == 0) return {};
  const uint64_t rounded = rounded_pages(bytes);
  MemoryBudget::Reservation reservation = vram_.reserve(rounded, what);
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, rounded);
  if (status == cudaErrorMemoryAllocation) throw_full(status, bytes, what);
  check_cuda(status, "cudaMalloc", what);
  DeviceBuffer buffer(*this, data, bytes, free_device, std::move(reservation));
  check_cuda(cudaMemsetAsync(data, 0, rounded, static_cast<cudaStream_t>(setup_.native())), "cudaMemsetAsync", what);
  setup_.synchronize();
  return buffer;
}

// The budget had room, the GPU has not: another process took the memory after this device was opened.
void CudaDevice::throw_full(cudaError_t status, uint64_t bytes, std::string_view what) const {
  (void)cudaGetLastError();
  size_t free_bytes = 0, total_bytes = 0;
  (void)cudaMemGetInfo(&free_bytes, &total_bytes);
  throw_error(
      ExitCode::kDoesNotFit, "cudaMalloc",
      str(format_bytes(bytes), " for ", what, ": ", cuda_error_text(status), "; ", format_bytes(free_bytes), " of ",
          format_bytes(total_bytes), " are free on ", name_, ", --vram allows ", format_bytes(vram_.limit_bytes())),
      "another process may hold memory there; end it, or set --vram lower");
}

PinnedBuffer CudaDevice::allocate_pinned(uint64_t bytes, std::string_view what) {
  // Its destructor may unregister pages that are not registered, which fails without harm.
  PinnedBuffer buffer = map_within<PinnedBuffer>(*this, host_mem_, bytes, what, free_pinned);
  if (!buffer) return buffer;
  const uint64_t rounded = whole_pages(bytes);
  touch_pages(buffer.data(), rounded, std::min(threads_, kTouchThreads));
  check_cuda(cudaSetDevice(gpu_), "cudaSetDevice");
  const cudaError_t status = cudaHostRegister(buffer.data(), rounded, cudaHostRegisterDefault);
  if (status != cudaSuccess) throw_cuda_error(status, "cudaHostRegister", str(format_bytes(bytes), " for ", what));
  return buffer;
}

// The GPUs that may be opened, in order; or why there are none.
std::vector<Gpu> candidates(const DeviceOptions& options, NoCuda* no_cuda, size_t* count) {
  const Gpus gpus = find_gpus();
  *count = gpus.all.size();
  if (!gpus.none.empty()) {
    no_cuda->why = gpus.none;
    return {};
  }
  if (options.cuda_index < 0) return gpus.all;
  if (static_cast<size_t>(options.cuda_index) < gpus.all.size()) {
    return {gpus.all[static_cast<size_t>(options.cuda_index)]};
  }
  no_cuda->why = str("there is no cuda:", options.cuda_index,
                     gpus.all.size() == 1 ? ", only cuda:0" : str(", only cuda:0 to cuda:", gpus.all.size() - 1));
  return {};
}

}  // namespace

bool cuda_usable() noexcept {
  try {
    const Gpus gpus = find_gpus();
    return std::any_of(gpus.all.begin(), gpus.all.end(), [](const Gpu& gpu) { return gpu.unusable.empty(); });
  } catch (...) {  // out of memory
    return false;
  }
}

std::unique_ptr<Device> open_cuda_device(const DeviceOptions& options, NoCuda* no_cuda) {
  const HostLimits limits = read_host_limits();
  size_t count = 0;
  for (const Gpu& gpu : candidates(options, no_cuda, &count)) {
    NoCuda refusal{ExitCode::kUsage, gpu.unusable};
    if (gpu.unusable.empty()) {
      const CudaContext context = make_context(gpu);
      if (context.unusable.empty()) {
        check_against(limits, "--host-mem", options.host_mem_bytes);
        check_vram(gpu, context.memory(), options.vram_bytes);
        return std::make_unique<CudaDevice>(gpu, count > 1, context, limits, options);
      }
      refusal = {ExitCode::kDoesNotFit, context.unusable};
    }
    if (no_cuda->why.empty()) *no_cuda = refusal;  // keep the first reason; the others are alike
  }
  return nullptr;
}

std::vector<DeviceListing> list_cuda_devices() {
  const Gpus gpus = find_gpus();
  if (!gpus.none.empty()) return {{"cuda", "no GPU", gpus.none}};
  std::vector<DeviceListing> devices;
  for (const Gpu& gpu : gpus.all) {
    const auto memory = read_gpu_memory(gpu.pci_bus_id);
    devices.push_back({str("cuda:", gpu.index),
                       str(gpu.name, ", ", format_bytes(gpu.total_bytes), ", ",
                           memory ? format_bytes(memory->free_bytes) + " free, " : "", "compute capability ", gpu.major,
                           ".", gpu.minor),
                       gpu.unusable});
  }
  return devices;
}

}  // namespace headrace
