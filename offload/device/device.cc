#include "offload/device/device.h"

#include <cmath>
#include <utility>

#include "cache/base.h"
#include "offload/device/backends.h"
#include "offload/device/trace.h"
#include "offload/host/host_limits.h"

namespace headrace {
namespace {

constexpr int kMaxThreads = 1024;

// --threads has been checked as a flag.
void check_options(const DeviceOptions& options) {
  CHECK(options.threads >= 0 && options.threads <= kMaxThreads, "threads=", options.threads);
  CHECK(std::isfinite(options.copy_gb_per_s) && options.copy_gb_per_s >= 0, "copy_gb_per_s=", options.copy_gb_per_s);
  CHECK(options.cuda_index == -1 || options.choice == DeviceChoice::kCuda, "cuda_index=", options.cuda_index);
}

std::unique_ptr<Device> open_any(const DeviceOptions& options) {
  if (options.choice == DeviceChoice::kCpu) return open_cpu_device(options);
  NoCuda no_cuda;
  if (auto device = open_cuda_device(options, &no_cuda)) return device;
  if (options.choice == DeviceChoice::kCuda) {
    throw_error(no_cuda.code, "--device", "cuda: " + no_cuda.why, "use --device cpu, or auto");
  }
  auto device = open_cpu_device(options);
  device->set_fallback_reason(no_cuda.why);
  return device;
}

}  // namespace

Device::Device() = default;
Device::~Device() = default;

std::unique_ptr<Stream> Device::make_stream(std::string_view name, StreamRole role) {
  auto stream = new_stream(name, role);
  if (trace_ != nullptr) stream->tracing() = {.trace = trace_.get(), .name = trace_->keep(name), .role = role};
  return stream;
}

void Device::set_trace(std::unique_ptr<Trace> trace) {
  trace->start(name(), make_trace_clock());
  trace_ = std::move(trace);
}

std::unique_ptr<Device> open_device(const DeviceOptions& options) {
  check_options(options);
  std::unique_ptr<Trace> trace;  // opened before the device, so that an unwritable file fails at once
  if (!options.trace_path.empty()) trace = std::make_unique<Trace>(options.trace_path);
  auto device = open_any(options);
  if (trace != nullptr) device->set_trace(std::move(trace));
  return device;
}

std::vector<DeviceListing> list_devices() {
  std::vector<DeviceListing> devices = list_cuda_devices();
  const HostLimits limits = read_host_limits();
  devices.push_back({"cpu",
                     str(limits.cores, limits.cores == 1 ? " core, " : " cores, ", format_bytes(limits.total_bytes),
                         ", ", format_bytes(limits.available_bytes), " free"),
                     ""});
  return devices;
}

}  // namespace headrace
