// The CPU backend's device: device memory is host memory under its own budget, a stream is a thread.

#include "offload/device/backends.h"
#include "offload/device/cpu/pace.h"
#include "offload/device/cpu/progress.h"
#include "offload/device/cpu/stream.h"
#include "offload/device/trace_clock.h"
#include "offload/host/clock.h"
#include "offload/host/host_limits.h"
#include "offload/host/machine.h"
#include "offload/host/thread_pool.h"

namespace headrace {
namespace {

void free_pages(Device&, void* data, uint64_t bytes) noexcept { unmap_pages(data, whole_pages(bytes)); }

// The stream's own thread reads the time when it reaches a stamp.
class CpuTraceClock final : public TraceClock {
 public:
  void stamp(Stream& stream, TraceSlice& slice, TraceEdge edge) override {
    cpu_stream(stream).enqueue([at = &slice, edge](ThreadPool&) { at->stamp(edge, host_now_ns()); });
  }
  void collect() override {}
  int64_t host_ns(int64_t stamp_ns) const override { return stamp_ns; }
};

class CpuDevice final : public Device {
 public:
  CpuDevice(const HostLimits& limits, const DeviceOptions& options)
      : host_mem_("--host-mem", options.host_mem_bytes != 0 ? options.host_mem_bytes : limits.default_host_mem()),
        vram_("--vram", options.vram_bytes != 0 ? options.vram_bytes : host_mem_.limit_bytes(), &host_mem_),
        pool_(options.threads != 0 ? options.threads : limits.cores),
        inline_pool_(1),
        paced_(options.copy_gb_per_s > 0),
        to_device_(options.copy_gb_per_s),
        to_host_(options.copy_gb_per_s) {}

  Backend backend() const override { return Backend::kCpu; }
  std::string name() const override { return str("CPU, ", threads(), threads() == 1 ? " thread" : " threads"); }
  std::string driver() const override { return read_machine().cpu; }
  int threads() const override { return pool_.threads(); }

  std::unique_ptr<Event> make_event() override { return std::make_unique<CpuEvent>(); }
  std::unique_ptr<TraceClock> make_trace_clock() override { return std::make_unique<CpuTraceClock>(); }

  DeviceBuffer allocate(uint64_t bytes, std::string_view what) override {
    return map_within<DeviceBuffer>(*this, vram_, bytes, what, free_pages);
  }
  PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) override {
    return map_within<PinnedBuffer>(*this, host_mem_, bytes, what, free_pages);
  }

  MemoryBudget& vram() override { return vram_; }
  MemoryBudget& host_mem() override { return host_mem_; }

 protected:
  std::unique_ptr<Stream> new_stream(std::string_view name, StreamRole role) override;

 private:
  MemoryBudget host_mem_;
  MemoryBudget vram_;
  ThreadPool pool_;
  ThreadPool inline_pool_;  // for copy streams: no workers, no state
  const bool paced_;
  Pace to_device_, to_host_;
  ProgressPool progress_;
};

std::unique_ptr<Stream> CpuDevice::new_stream(std::string_view name, StreamRole role) {
  CpuStreamParts parts{.device = this,
                       .pool = role == StreamRole::kCompute ? &pool_ : &inline_pool_,
                       .progress_pool = &progress_,
                       .paces = {}};
  if (paced_) {
    parts.paces[static_cast<size_t>(Link::kHostToDevice)] = &to_device_;
    parts.paces[static_cast<size_t>(Link::kDeviceToHost)] = &to_host_;
  }
  return std::make_unique<CpuStreamBody>(name, parts);
}

}  // namespace

std::unique_ptr<Device> open_cpu_device(const DeviceOptions& options) {
  const HostLimits limits = read_host_limits();
  check_against(limits, "--host-mem", options.host_mem_bytes);
  check_against(limits, "--vram", options.vram_bytes);
  return std::make_unique<CpuDevice>(limits, options);
}

}  // namespace headrace
