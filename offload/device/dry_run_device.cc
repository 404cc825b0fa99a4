#include "offload/device/dry_run_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "cache/base.h"
#include "offload/device/backends.h"
#include "offload/device/cpu_stream.h"
#include "offload/device/cuda_stream.h"
#include "offload/device/trace_clock.h"

namespace headrace {
namespace {

[[noreturn]] void nothing_runs() { throw_error(ExitCode::kInternal, "a simulated device", "was asked to run work"); }

class DryRunEvent final : public Event {
 public:
  bool done() const override { return true; }
  void synchronize() override {}
};

class DryRunClock final : public TraceClock {
 public:
  void stamp(Stream&, TraceSlice&, TraceEdge) override {}
  void collect() override {}
  int64_t host_ns(int64_t stamp_ns) const override { return stamp_ns; }
};

// Always idle.
class DryRunCpuStream final : public CpuStream {
 public:
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
  void check() override {}
  void* native() const override { return nullptr; }

 protected:
  void copy_bytes(void*, const void*, size_t, Link) override { nothing_runs(); }
  void push(Call, const void*, size_t) override { nothing_runs(); }
};

class DryRunCudaStream final : public CudaStream {
 public:
  explicit DryRunCudaStream(Device& device) : CudaStream(device) {}
  void record(Event&) override {}
  void wait(const Event&) override {}
  void synchronize() override {}
  void check() override {}
  void* native() const override { nothing_runs(); }
  void check_launch(const char*) override { nothing_runs(); }
  void begin_recording() override { nothing_runs(); }
  std::unique_ptr<CudaGraph> end_recording() override { nothing_runs(); }
  void drop_recording() noexcept override {}
  void mark() override { nothing_runs(); }
  void* beside() override { nothing_runs(); }
  void join() override { nothing_runs(); }

 protected:
  void copy_bytes(void*, const void*, size_t, Link) override { nothing_runs(); }
};

void free_addresses(Device&, void* data, uint64_t bytes) noexcept { munmap(data, whole_pages(bytes)); }

template <typename Owner>
Owner reserve_addresses(Device& device, MemoryBudget& budget, uint64_t bytes, std::string_view what) {
  if (bytes == 0) return Owner();
  const uint64_t rounded = rounded_pages(bytes);
  MemoryBudget::Reservation reservation = budget.reserve(rounded, what);
  void* const data = mmap(nullptr, rounded, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw_error(ExitCode::kDoesNotFit, "mmap",
                str("addresses for ", format_bytes(bytes), " of ", what, ": ", std::strerror(errno)));
  }
  return Owner(device, data, bytes, free_addresses, std::move(reservation));
}

class DryRunDevice final : public Device {
 public:
  explicit DryRunDevice(const DryRunCard& card)
      : card_(card),
        host_mem_("--host-mem", card.host_bytes),
        vram_("--vram", card.vram_bytes, card.backend == Backend::kCpu ? &host_mem_ : nullptr),
        taken_(vram_.reserve(card.taken_bytes, "CUDA itself")) {}

  Backend backend() const override { return card_.backend; }
  std::string name() const override { return card_.name; }
  std::string driver() const override { return card_.driver; }
  int threads() const override { return card_.threads; }
  std::unique_ptr<Event> make_event() override { return std::make_unique<DryRunEvent>(); }
  std::unique_ptr<TraceClock> make_trace_clock() override { return std::make_unique<DryRunClock>(); }
  DeviceBuffer allocate(uint64_t bytes, std::string_view what) override {
    return reserve_addresses<DeviceBuffer>(*this, vram_, bytes, what);
  }
  PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) override {
    return reserve_addresses<PinnedBuffer>(*this, host_mem_, bytes, what);
  }
  MemoryBudget& vram() override { return vram_; }
  MemoryBudget& host_mem() override { return host_mem_; }

 protected:
  std::unique_ptr<Stream> new_stream(std::string_view, StreamRole) override {
    if (card_.backend == Backend::kCpu) return std::make_unique<DryRunCpuStream>();
    return std::make_unique<DryRunCudaStream>(*this);
  }

 private:
  const DryRunCard card_;
  MemoryBudget host_mem_, vram_;
  MemoryBudget::Reservation taken_;
};

}  // namespace

std::unique_ptr<Device> open_dry_run_device(const DryRunCard& card) { return std::make_unique<DryRunDevice>(card); }

DryRunCard dry_run_of(Device& device) {
  return {.name = device.name(),
          .driver = device.driver(),
          .backend = device.backend(),
          .vram_bytes = device.vram().limit_bytes(),
          .host_bytes = device.host_mem().limit_bytes(),
          .taken_bytes = device.vram().used_bytes(),
          .threads = device.threads()};
}

}  // namespace headrace
