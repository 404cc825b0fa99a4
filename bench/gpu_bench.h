// What the GPU benches share: the device, data to compute on, and lines of JSON in which each figure stands beside what
// the same GPU gave at best in the same run. The first line names the machine and those ceilings. Thread: one.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "bench/gpu_ceilings.h"
#include "cache/base.h"
#include "offload/device.h"

namespace headrace::bench {

// What a call cannot do without.
struct Work {
  double bytes = 0;  // of device memory read and written
  double flops = 0;  // of products
};

enum class Multiplier { kLibrary, kMmaSync };  // which of the two ceilings holds for the call's products

class GpuBench {
 public:
  explicit GpuBench(const char* program);

  Device& device() { return *device_; }
  Stream& stream() { return *stream_; }

  DeviceBuffer zeros(int64_t bytes);
  DeviceBuffer normal(int64_t count, DType type, float scale = 1.0f);
  template <typename T>
  DeviceBuffer upload(const std::vector<T>& values) {
    return upload_bytes(values.data(), values.size() * sizeof(T));
  }

  // Microseconds a call (bench/gpu_time.h).
  double time(int calls, const std::function<void()>& call);
  // A line: `row`, then us, GB/s, TFLOP/s and the share of the ceiling: the time that the work takes at the ceiling
  // that binds it, over `us`. Above 1 the data stayed in the second-level cache.
  void report(nlohmann::ordered_json row, double us, const Work& work, Multiplier multiplier = Multiplier::kLibrary);

 private:
  DeviceBuffer upload_bytes(const void* data, size_t bytes);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  GpuCeilings ceilings_;
};

}  // namespace headrace::bench
