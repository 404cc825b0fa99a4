// A device: where kernels run, and the maker of streams, events and buffers. The backend is chosen at run time.
// Owns the two memory budgets and counts the bytes that cross each link. Thread-safe but for destruction; must outlive
// all it made.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "offload/device/budget.h"
#include "offload/device/buffer.h"
#include "offload/device/stream.h"

namespace headrace {

class Trace;
class TraceClock;

enum class DeviceChoice { kAuto, kCpu, kCuda };

struct DeviceOptions {
  DeviceChoice choice = DeviceChoice::kAuto;
  int cuda_index = -1;          // cuda:N; -1: the first GPU that can be used
  uint64_t vram_bytes = 0;      // 0: the default (docs/design.md, section 11)
  uint64_t host_mem_bytes = 0;  // 0: 60% of what is available
  int threads = 0;              // CPU workers; 0: the cores this process may use
  double copy_gb_per_s = 0;     // CPU backend: paces copies between the tiers, for tests and demonstrations; 0: not
  std::string trace_path{};     // a file for a trace of all streams (trace.h); empty: none
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual Backend backend() const = 0;
  virtual std::string name() const = 0;  // "CPU, 2 threads", "NVIDIA H200"
  // With name(), what a measurement of it is kept by: the version of a GPU's driver, the processor's name.
  virtual std::string driver() const { return {}; }
  virtual std::string pci_bus_id() const { return {}; }  // "0000:01:00.0"; empty: it is on none
  virtual int threads() const = 0;                       // for work on the host; on the CPU backend its pool's too

  // The name shows in traces and in the thread's name. Compute streams of the CPU backend share the device's pool, so
  // that one at a time may be used.
  std::unique_ptr<Stream> make_stream(std::string_view name, StreamRole role);
  virtual std::unique_ptr<Event> make_event() = 0;

  // Budgeted; throws Error(kDoesNotFit). `what` says what the memory is for.
  virtual DeviceBuffer allocate(uint64_t bytes, std::string_view what) = 0;
  virtual PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) = 0;

  virtual MemoryBudget& vram() = 0;
  virtual MemoryBudget& host_mem() = 0;

  // Why DeviceChoice::kAuto took the CPU; empty when it did not, or was not asked.
  const std::string& fallback_reason() const { return fallback_reason_; }
  void set_fallback_reason(std::string reason) { fallback_reason_ = std::move(reason); }  // open_device() does

  // Null where nothing is traced.
  Trace* trace() const { return trace_.get(); }
  void set_trace(std::unique_ptr<Trace> trace);  // open_device() does, before there are streams
  virtual std::unique_ptr<TraceClock> make_trace_clock() = 0;

  // Bytes enqueued since the device was opened.
  uint64_t bytes_over(Link link) const { return bytes_[static_cast<size_t>(link)].load(std::memory_order_relaxed); }
  void count(Link link, uint64_t bytes) {
    bytes_[static_cast<size_t>(link)].fetch_add(bytes, std::memory_order_relaxed);
  }

 protected:
  Device();
  virtual std::unique_ptr<Stream> new_stream(std::string_view name, StreamRole role) = 0;

 private:
  std::array<std::atomic<uint64_t>, kLinkCount> bytes_{};
  std::string fallback_reason_;
  std::unique_ptr<Trace> trace_;
};

// Throws Error: no such device (kUsage), or a budget above what the machine has (kDoesNotFit).
std::unique_ptr<Device> open_device(const DeviceOptions& options);

struct DeviceListing {
  std::string id;           // what --device takes: "cuda:0", "cpu"
  std::string description;  // "NVIDIA H200, 139.80 GiB, 139.22 GiB free, compute capability 9.0"
  std::string unusable;     // why not; empty: it can be used
};
// GPUs in CUDA's order, then the CPU. Where there is no GPU, one "cuda" that says why.
std::vector<DeviceListing> list_devices();

}  // namespace headrace
