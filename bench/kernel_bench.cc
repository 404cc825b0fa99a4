// The kernels alone, on the CPU backend, over the shapes of SmolLM2-135M: GFLOP/s of products, GB/s of what is bound by
// memory, beside what reading memory gives at best on the same machine.
//   kernel_bench --benchmark_min_time=0.1 [--benchmark_filter=product]
//   kernel_bench --benchmark_out=FILE --benchmark_out_format=json
//   HEADRACE_ISA=avx2 HEADRACE_BENCH_THREADS=1 kernel_bench
// Weights are cold: calls take turns over copies that are larger than any cache, as a decode step's layers are.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/cpu_machine.h"
#include "kernels/cpu/isa.h"
#include "kernels/elementwise.h"
#include "kernels/product.h"
#include "offload/cpu_stream.h"
#include "offload/device.h"

namespace headrace {
namespace {

constexpr uint64_t kColdBytes = 192 * kMiB;

bench::CpuMachine& machine() { return bench::cpu_machine(); }

// Small finite values in every type: 0x3c3c is about 0.0115 in bf16 and f32 and 1.06 in f16.
DeviceBuffer filled(uint64_t bytes) {
  DeviceBuffer buffer = machine().device->allocate(bytes, "bench");
  std::memset(buffer.data(), 0x3c, bytes);
  return buffer;
}

// Copies of a weight, one after the other, used in turn.
class Cold {
 public:
  explicit Cold(uint64_t bytes)
      : bytes_(round_up(bytes, 4096)), copies_(kColdBytes / bytes_ + 1), buffer_(filled(bytes_ * copies_)) {}
  const std::byte* next() { return buffer_.data() + bytes_ * (turn_++ % copies_); }

 private:
  uint64_t bytes_, copies_, turn_ = 0;
  DeviceBuffer buffer_;
};

void set_rate(benchmark::State& state, const char* name, double per_call) {
  state.counters[name] = benchmark::Counter(per_call * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

// What the memory gives: both threads read, nothing is computed but a sum that keeps the reads.
void read_memory(benchmark::State& state) {
  constexpr int64_t kPieces = 64;
  const uint64_t bytes = static_cast<uint64_t>(state.range(0)) * kMiB;
  const DeviceBuffer buffer = filled(bytes);
  struct Work {
    const uint64_t* words;
    uint64_t* sums;
    int64_t per_piece;
  };
  std::vector<uint64_t> sums(kPieces * 8);
  const Work work{buffer.as<uint64_t>(), sums.data(), static_cast<int64_t>(bytes / 8) / kPieces};
  for (auto _ : state) {
    cpu_stream(*machine().stream).enqueue([work](ThreadPool& pool) {
      pool.parallel_for(kPieces, [&](int64_t piece, int) {
        const uint64_t* words = work.words + piece * work.per_piece;
        uint64_t lanes[32] = {};
        for (int64_t i = 0; i + 32 <= work.per_piece; i += 32) {
          for (int lane = 0; lane < 32; ++lane) lanes[lane] += words[i + lane];
        }
        for (uint64_t lane : lanes) work.sums[piece * 8] += lane;
      });
    });
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", static_cast<double>(bytes));
}

void product_bench(benchmark::State& state, DType type, int64_t rows, int64_t n, int64_t k) {
  const uint64_t element = dtype_bytes(type);
  const uint64_t weight_bytes = static_cast<uint64_t>(n * k) * element;
  const DeviceBuffer x = filled(static_cast<uint64_t>(rows * k) * element);
  const DeviceBuffer out = filled(static_cast<uint64_t>(rows * n) * element);
  Cold weights(weight_bytes);
  ProductParams params{};
  params.x = x.data();
  params.out = out.data();
  params.type = params.out_type = type;
  params.rows = rows;
  params.n = n;
  params.k = k;
  params.path = rows > kProductRowPadding ? ProductPath::kPrefill : ProductPath::kDecode;
  constexpr int kCallsInFlight = 8;  // as a step has it: the stream's queue is never empty
  int64_t calls = 0;
  for (auto _ : state) {
    params.w = weights.next();
    product(params, *machine().stream);
    if (++calls % kCallsInFlight == 0) machine().stream->synchronize();
  }
  machine().stream->synchronize();
  set_rate(state, "GFLOP/s", 2.0 * static_cast<double>(rows * n * k));
  set_rate(state, "weights_GB/s", static_cast<double>(weight_bytes));
}

void rms_norm_bench(benchmark::State& state, DType type, int64_t rows) {
  constexpr int64_t kCols = 576;
  const uint64_t bytes = static_cast<uint64_t>(rows * kCols) * dtype_bytes(type);
  const DeviceBuffer x = filled(bytes), out = filled(bytes), weight = filled(kCols * 4);
  const RmsNormParams params{x.data(), weight.data(), out.data(), type, rows, 1, kCols, kCols, kCols, 1e-5f};
  for (auto _ : state) {
    rms_norm(params, *machine().stream);
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", 2.0 * static_cast<double>(bytes));
}

void silu_mul_bench(benchmark::State& state, DType type, int64_t rows) {
  constexpr int64_t kCols = 1536;
  const uint64_t bytes = static_cast<uint64_t>(rows * kCols) * dtype_bytes(type);
  const DeviceBuffer in = filled(2 * bytes), out = filled(bytes);
  const SiluMulParams params{in.data(), out.data(), type, rows, kCols};
  for (auto _ : state) {
    silu_mul(params, *machine().stream);
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", 3.0 * static_cast<double>(bytes));
}

void rope_bench(benchmark::State& state, DType type, int64_t rows) {
  constexpr int64_t kHeads = 9, kKvHeads = 3, kDim = 64, kStride = (kHeads + 2 * kKvHeads) * kDim;
  const uint64_t element = dtype_bytes(type);
  const DeviceBuffer qkv = filled(static_cast<uint64_t>(rows * kStride) * element);
  const DeviceBuffer k_out = filled(static_cast<uint64_t>(rows * kKvHeads * kDim) * element);
  const DeviceBuffer v_out = filled(k_out.bytes());
  const DeviceBuffer table = filled(static_cast<uint64_t>(rows * kDim) * 4);
  const DeviceBuffer positions = filled(static_cast<uint64_t>(rows) * 4);
  for (int64_t row = 0; row < rows; ++row) positions.as<int32_t>()[row] = static_cast<int32_t>(row);
  RopeParams params{};
  params.q = qkv.data();
  params.k = qkv.data() + kHeads * kDim * element;
  params.v = qkv.data() + (kHeads + kKvHeads) * kDim * element;
  params.positions = positions.as<int32_t>();
  params.cos_sin = table.as<float>();
  params.k_out = k_out.data();
  params.v_out = v_out.data();
  params.type = params.k_type = params.v_type = type;
  params.rows = rows;
  params.heads = kHeads;
  params.kv_heads = kKvHeads;
  params.head_dim = kDim;
  params.qkv_stride = kStride;
  params.table_rows = rows;
  params.out_row_stride = kKvHeads * kDim;
  params.out_head_stride = kDim;
  for (auto _ : state) {
    rope(params, *machine().stream);
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", static_cast<double>(qkv.bytes() + k_out.bytes() + v_out.bytes()) * 1.5);
}

template <typename Bench>
void add(const std::string& name, const Bench& bench) {
  benchmark::RegisterBenchmark(name.c_str(), bench)->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void add_all() {
  benchmark::RegisterBenchmark("read_memory/MiB", read_memory)->Arg(192)->UseRealTime();
  const std::pair<int64_t, int64_t> shapes[] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}, {49152, 576}};
  for (DType type : {DType::kBF16, DType::kF32, DType::kF16}) {
    const std::string suffix = str("/", dtype_name(type), "/rows:");
    for (const auto& [n, k] : shapes) {
      for (int64_t rows : {1, 2, 4, 8, 16, 32, 64, 128, 256}) {
        add(str("product/", n, "x", k, suffix, rows),
            [=, n = n, k = k](benchmark::State& state) { product_bench(state, type, rows, n, k); });
      }
    }
    for (int64_t rows : {1, 64, 256}) {
      add(str("rms_norm/576", suffix, rows), [=](benchmark::State& state) { rms_norm_bench(state, type, rows); });
      add(str("silu_mul/1536", suffix, rows), [=](benchmark::State& state) { silu_mul_bench(state, type, rows); });
      add(str("rope/9+3x64", suffix, rows), [=](benchmark::State& state) { rope_bench(state, type, rows); });
    }
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  try {
    benchmark::AddCustomContext("headrace_device", headrace::machine().device->name());
    benchmark::AddCustomContext("headrace_isa", headrace::kernels::isa_name(headrace::kernels::isa()));
    headrace::add_all();
    benchmark::RunSpecifiedBenchmarks();
  } catch (const headrace::Error& error) {
    fprintf(stderr, "kernel_bench: %s\n", error.what());
    return static_cast<int>(error.code());
  }
  return 0;
}
