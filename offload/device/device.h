// A device: runs kernels and makes streams, events and buffers. The backend is selected at run time. Owns the two
// memory budgets and counts the bytes that cross each link. Thread-safe except for destruction; must outlive all
// objects it made.
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
  int cuda_index = -1;          // cuda:N; -1: the first usable GPU
  uint64_t vram_bytes = 0;      // 0: the default (docs/design.md, section 11)
  uint64_t host_mem_bytes = 0;  // 0: 60% of the available memory
  int threads = 0;              // CPU workers; 0: the cores this process may use
  double copy_gb_per_s = 0;     // CPU backend: pace of copies between tiers, for tests and demonstrations; 0: none
  std::string trace_path{};     // a file for a trace of all streams (trace.h); empty: none
};

class Device {
 public:
  virtual ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual Backend backend() const = 0;
  virtual std::string name() const = 0;  // "CPU, 2 threads", "NVIDIA H200"
  // Together with name() the key of a kept measurement: the version of a GPU's driver, or the processor's name.
  virtual std::string driver() const { return {}; }
  virtual std::string pci_bus_id() const { return {}; }  // "0000:01:00.0"; empty: none
  virtual int threads() const = 0;                       // for host work; on the CPU backend also the size of its pool

  // The name appears in traces and as the thread's name. Compute streams of the CPU backend share the device's pool, so
  // only one may be used at a time.
  std::unique_ptr<Stream> make_stream(std::string_view name, StreamRole role);
  virtual std::unique_ptr<Event> make_event() = 0;

  // Budgeted; throws Error(kDoesNotFit). `what` names the purpose of the memory.
  virtual DeviceBuffer allocate(uint64_t bytes, std::string_view what) = 0;
  virtual PinnedBuffer allocate_pinned(uint64_t bytes, std::string_view what) = 0;

  virtual MemoryBudget& vram() = 0;
  virtual MemoryBudget& host_mem() = 0;

  // Why DeviceChoice::kAuto selected the CPU; empty otherwise.
  const std::string& fallback_reason() const { return fallback_reason_; }
  void set_fallback_reason(std::string reason) { fallback_reason_ = std::move(reason); }  // called by open_device()

  // Null without a trace.
  Trace* trace() const { return trace_.get(); }
  void set_trace(std::unique_ptr<Trace> trace);  // called by open_device(), before streams exist
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

// Throws Error: no such device (kUsage), or a budget above the machine's memory (kDoesNotFit).
std::unique_ptr<Device> open_device(const DeviceOptions& options);

struct DeviceListing {
  std::string id;           // the value of --device: "cuda:0", "cpu"
  std::string description;  // "NVIDIA H200, 139.80 GiB, 139.22 GiB free, compute capability 9.0"
  std::string unusable;     // the reason; empty: it can be used
};
// GPUs in CUDA's order, then the CPU. Without a GPU the list has one "cuda" entry with the reason.
std::vector<DeviceListing> list_devices();

}  // namespace headrace
