#include "bench/gpu_bench.h"

#include <algorithm>
#include <cstdio>
#include <random>

#include "bench/gpu_time.h"
#include "bench/machine.h"
#include "runtime/rounding.h"

namespace headrace::bench {
namespace {

using nlohmann::ordered_json;

double rounded(double value) { return to_digits(value, 4); }

void print(const ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

}  // namespace

GpuBench::GpuBench(const char* program) {
  DeviceOptions options;
  options.choice = DeviceChoice::kCuda;
  device_ = open_device(options);
  stream_ = device_->make_stream("bench", StreamRole::kCompute);
  ceilings_ = measure_ceilings(*device_, *stream_);
  ordered_json machine = machine_json();
  machine["device"] = device_->name();
  print({{"program", program},
         {"machine", machine},
         {"ceilings",
          {{"copy_gb_per_s", rounded(ceilings_.copy_gb_per_s)},
           {"read_gb_per_s", rounded(ceilings_.read_gb_per_s)},
           {"product_tflop_per_s", rounded(ceilings_.product_tflop_per_s)},
           {"mma_sync_tflop_per_s", rounded(ceilings_.mma_sync_tflop_per_s)}}}});
}

DeviceBuffer GpuBench::zeros(int64_t bytes) { return device_->allocate(static_cast<uint64_t>(bytes), "bench"); }

DeviceBuffer GpuBench::upload_bytes(const void* data, size_t bytes) {
  DeviceBuffer buffer = device_->allocate(bytes, "bench");
  const PinnedBuffer staging = device_->allocate_pinned(bytes, "bench");
  std::memcpy(staging.data(), data, bytes);
  stream_->copy(buffer.data(), staging.data(), bytes, Link::kHostToDevice);
  stream_->synchronize();
  return buffer;
}

// Drawn anew for as much as takes no time, then repeated.
DeviceBuffer GpuBench::normal(int64_t count, DType type, float scale) {
  constexpr size_t kDrawn = 1000003;
  std::minstd_rand random(1);
  std::normal_distribution<float> values(0.0f, scale);
  const size_t element = dtype_bytes(type), all = static_cast<size_t>(count), drawn = std::min(all, kDrawn);
  std::vector<std::byte> bytes(drawn * element);
  for (size_t i = 0; i < drawn; ++i) {
    const float value = values(random);
    const uint16_t half = type == DType::kBF16 ? f32_to_bf16(value).bits : f32_to_f16(value).bits;
    std::memcpy(bytes.data() + i * element, type == DType::kF32 ? static_cast<const void*>(&value) : &half, element);
  }
  DeviceBuffer buffer = zeros(static_cast<int64_t>(all * element));
  const DeviceBuffer piece = upload_bytes(bytes.data(), bytes.size());
  for (size_t at = 0; at < all; at += drawn) {
    stream_->copy(buffer.data() + at * element, piece.data(), std::min(drawn, all - at) * element, Link::kWithinDevice);
  }
  stream_->synchronize();
  return buffer;
}

double GpuBench::time(int calls, const std::function<void()>& call) { return median_us(*stream_, calls, call); }

void GpuBench::report(ordered_json row, double us, const Work& work, Multiplier multiplier) {
  const double memory = std::max(ceilings_.read_gb_per_s, ceilings_.copy_gb_per_s) * 1e3;  // bytes a microsecond
  const double products =
      (multiplier == Multiplier::kLibrary ? ceilings_.product_tflop_per_s : ceilings_.mma_sync_tflop_per_s) * 1e6;
  const double by_bytes = work.bytes / memory, by_flops = work.flops / products;
  row["us"] = rounded(us);
  row["GB/s"] = rounded(work.bytes / us * 1e-3);
  if (work.flops > 0) row["TFLOP/s"] = rounded(work.flops / us * 1e-6);
  row["bound_by"] = by_flops > by_bytes ? "products" : "bytes";
  row["of_ceiling"] = rounded(std::max(by_bytes, by_flops) / us);
  print(row);
}

}  // namespace headrace::bench
