// Shared by the cases of kernel_bench: the device, data, timing, and one line of JSON per measurement. Thread: one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/ceilings.h"
#include "cache/base.h"
#include "kernels/weights/type.h"
#include "offload/device/device.h"
#include "runtime/model/config.h"

namespace headrace::bench {

inline double real(int64_t value) { return static_cast<double>(value); }

// The minimum work of a call.
struct Work {
  double bytes = 0;  // of device memory read and written; 0: no rate is reported
  double flops = 0;  // of products
};

// Sizes of a model whose layers are alike.
struct BenchShape {
  int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
};

class KernelBench {
 public:
  KernelBench(DeviceChoice choice, int threads);

  Stream& stream() { return *stream_; }
  bool on_cpu() const { return device_->backend() == Backend::kCpu; }
  void print_machine(const std::string& shape);

  DeviceBuffer zeros(int64_t bytes) { return device_->allocate(static_cast<uint64_t>(bytes), "bench"); }
  DeviceBuffer normal(int64_t count, DType type, float scale = 1.0f);
  template <typename T>
  DeviceBuffer upload(const std::vector<T>& values) {
    return upload_bytes(values.data(), values.size() * sizeof(T));
  }
  DeviceBuffer same(int64_t count, int64_t value) {  // [count] of int32
    return upload(std::vector<int32_t>(static_cast<size_t>(count), static_cast<int32_t>(value)));
  }
  DeviceBuffer ascending(int64_t count, int32_t step = 1);  // 0, step, 2 step, …

  // Times `call` and prints `row` with us, GB/s, TFLOP/s and `of_ceiling`: the time of the work at its ceiling, over
  // `us`. Above 1 the data stayed in a cache, or a library's product used more than mma.sync (Hopper).
  void measure(nlohmann::ordered_json row, const Work& work, const std::function<void()>& call);

  // Sizes of the data.
  BenchShape shape{};
  int64_t context = 0;
  int64_t part_rows = 0;  // the prefix is read in parts of so many rows; 0: as a step reads it
  DType type = DType::kBF16;
  std::optional<WeightType> weights;  // of products; none: `type`
  std::vector<DType> cache_types;     // of the prefix; none: `type`

  uint64_t element() const { return dtype_bytes(type); }
  int64_t kv_width() const { return shape.kv_heads * shape.head_dim; }
  int64_t q_width() const { return shape.heads * shape.head_dim; }

 private:
  DeviceBuffer upload_bytes(const void* data, size_t bytes);

  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
  Ceilings ceilings_;
};

// Copies of one operand that together exceed any cache, used in turn, like the layers of a decode step.
class ColdCopies {
 public:
  ColdCopies(KernelBench& bench, int64_t elements, DType type, float scale = 1.0f);
  const std::byte* next() { return buffer_.data() + bytes_ * (turn_++ % copies_); }

 private:
  uint64_t bytes_, copies_, turn_ = 0;
  DeviceBuffer buffer_;
};

struct Case {
  const char* name;
  void (*run)(KernelBench&, int64_t rows);
  int64_t least_rows, most_rows;  // runs for the values of --rows in this range; 0, 0: runs once
};
extern const std::vector<Case> kLayerCases, kInt8Cases, kStepCases, kAttentionCases, kPartialCases, kRecurrenceCases;

}  // namespace headrace::bench
