// Single kernels, on a CPU or a GPU, at the shape of a model with random weights. One JSON object per line: the first
// names the machine and its peak rates (bench/ceilings.h), each other one a call's time and rates.
//   kernel_bench [--device cuda|cpu] [--shape llama-3.1-8b] [--type bf16,f16,f32] [--weights Q4_K] [--rows 1,64,2048]
//                [--cache-type bf16,int8,int4] [--context 61440] [--only product,prefix_attention] [--threads N]
//                [--head-dim 256]
//   HEADRACE_ISA=avx2 kernel_bench --device cpu
// Without flags: on a GPU Llama-3.1-8B in bf16 with 61,440 tokens, on the CPU SmolLM2-135M in every type with 7,680.
#include "bench/kernel_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>

#include "bench/figures.h"
#include "bench/program.h"
#include "kernels/cpu/isa.h"
#include "offload/device/cpu_stream.h"
#include "runtime/base/rounding.h"
#include "runtime/commands/report_json.h"
#include "runtime/model/files/shapes.h"

namespace headrace::bench {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kColdBytes = 256 * kMiB;

using Words = std::vector<std::string>;

struct Args {
  DeviceChoice device = DeviceChoice::kAuto;
  std::string shape;          // empty: by the device
  Words types, only;          // empty: by the device; all
  std::string weights;        // of products, as ggml names a type; empty: each of `types`
  Words cache_types;          // of the prefix; empty: each of `types`
  std::vector<int64_t> rows;  // empty: a usual list
  int64_t context = 0;        // 0: by the device
  int64_t part_rows = 0;
  int64_t head_dim = 0;  // 0: the shape's
  int threads = 0;
};

double digits(double value) { return to_digits(value, 4); }

void print(const ordered_json& line) {
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const auto* list :
       {&kLayerCases, &kInt8Cases, &kStepCases, &kAttentionCases, &kPartialCases, &kRecurrenceCases}) {
    cases.insert(cases.end(), list->begin(), list->end());
  }
  return cases;
}

void run(Args args) {
  KernelBench bench(args.device, args.threads);
  if (args.shape.empty()) args.shape = bench.on_cpu() ? "smollm2-135m" : "llama-3.1-8b";
  if (args.types.empty()) args.types = bench.on_cpu() ? Words{"bf16", "f32", "f16"} : Words{"bf16"};
  if (args.context == 0) args.context = bench.on_cpu() ? 7680 : 61440;
  if (args.rows.empty()) args.rows = {1, 4, 16, 64, 128, 512, 2048, 8192, args.context};
  if (!args.weights.empty()) {
    const WeightTypeInfo* const weights = find_weight_type(args.weights);
    CHECK(weights != nullptr && !is_plain(weights->type), "--weights ", args.weights);
    bench.weights = weights->type;
  }
  for (const std::string& name : args.cache_types) {
    DType type = name == "int8" ? DType::kInt8 : DType::kInt4;
    CHECK(name == dtype_name(type) || parse_dtype(name, &type), name);
    bench.cache_types.push_back(type);
  }
  const ModelConfig config = find_shape(args.shape).config;
  const AttentionSpec& attention = config.attention();
  const int64_t head_dim = args.head_dim > 0 ? args.head_dim : attention.head_dim;
  CHECK(attention.q_width() % head_dim == 0 && attention.kv_width() % head_dim == 0, "--head-dim ", head_dim);
  bench.shape = {.layers = config.layer_count(),
                 .hidden = config.hidden,
                 .heads = attention.q_width() / head_dim,
                 .kv_heads = attention.kv_width() / head_dim,
                 .head_dim = head_dim,
                 .ffn = config.layers.front().ffn.width,
                 .vocab = config.vocab};
  bench.context = args.context;
  bench.part_rows = args.part_rows;
  bench.print_machine(args.head_dim > 0 ? str(args.shape, ", heads of ", head_dim) : args.shape);
  for (const Case& each : all_cases()) {
    if (!args.only.empty() && std::find(args.only.begin(), args.only.end(), each.name) == args.only.end()) continue;
    for (const std::string& type : args.types) {
      CHECK(parse_dtype(type, &bench.type), type);
      if (each.most_rows == 0) each.run(bench, 0);
      for (int64_t rows : args.rows) {
        if (rows >= std::max<int64_t>(each.least_rows, 1) && rows <= each.most_rows) each.run(bench, rows);
      }
    }
  }
}

}  // namespace

double median_us(Stream& stream, const std::function<void()>& call) {
  const auto us_of = [&](int calls) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    stream.synchronize();
    return seconds_since(start) * 1e6 / calls;
  };
  us_of(1);  // warm-up
  const int calls = static_cast<int>(std::clamp(20e3 / us_of(1), 1.0, 200.0));
  std::vector<double> us;
  for (int round = 0; round < 5; ++round) us.push_back(us_of(calls));
  return median(us);
}

Ceilings measure_cpu_ceilings(Device& device, Stream& stream) {
  struct Read {
    const uint64_t* words;
    uint64_t* sums;  // [kPieces]: keeps the reads
    int64_t per_piece;
  };
  constexpr int64_t kPieces = 64;
  const DeviceBuffer memory = device.allocate(kColdBytes, "bench"), sums = device.allocate(kPieces * 8, "bench");
  std::memset(memory.data(), 0x3c, kColdBytes);  // real memory instead of the zero page
  const Read read{memory.as<uint64_t>(), sums.as<uint64_t>(), static_cast<int64_t>(kColdBytes / 8) / kPieces};
  const double us = median_us(stream, [&] {
    cpu_stream(stream).enqueue([read](ThreadPool& pool) {
      pool.parallel_for(kPieces, [&](int64_t piece, int) {
        const uint64_t* words = read.words + piece * read.per_piece;
        uint64_t lanes[32] = {}, sum = 0;
        for (int64_t i = 0; i < read.per_piece; i += 32) {
          for (int lane = 0; lane < 32; ++lane) lanes[lane] += words[i + lane];
        }
        for (uint64_t lane : lanes) sum += lane;
        read.sums[piece] = sum;
      });
    });
  });
  return {.read_gb_per_s = static_cast<double>(kColdBytes) / us * 1e-3};
}

KernelBench::KernelBench(DeviceChoice choice, int threads)
    : device_(open_device({.choice = choice, .threads = threads})),
      stream_(device_->make_stream("bench", StreamRole::kCompute)) {
#if HEADRACE_BENCH_CUDA
  if (!on_cpu()) ceilings_ = measure_gpu_ceilings(*device_, *stream_);
#endif
  if (on_cpu()) ceilings_ = measure_cpu_ceilings(*device_, *stream_);
}

void KernelBench::print_machine(const std::string& name) {
  ordered_json machine = machine_json(read_machine(), device_->name());
  if (on_cpu()) machine["isa"] = kernels::isa_name(kernels::isa());
  ordered_json ceilings = {{"read_gb_per_s", digits(ceilings_.read_gb_per_s)}};
  if (!on_cpu()) ceilings["mma_sync_tflop_per_s"] = digits(ceilings_.mma_sync_tflop_per_s);
  print({{"program", "kernel_bench"},
         {"machine", machine},
         {"shape", name},
         {"context", context},
         {"ceilings", ceilings}});
}

DeviceBuffer KernelBench::upload_bytes(const void* data, size_t bytes) {
  DeviceBuffer buffer = device_->allocate(bytes, "bench");
  const PinnedBuffer staging = device_->allocate_pinned(bytes, "bench");
  std::memcpy(staging.data(), data, bytes);
  stream_->copy(buffer.data(), staging.data(), bytes, Link::kHostToDevice);
  stream_->synchronize();
  return buffer;
}

DeviceBuffer KernelBench::ascending(int64_t count, int32_t step) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int32_t>(i) * step;
  return upload(values);
}

// Draws a million values and repeats them: softmax over equal keys would be too cheap.
DeviceBuffer KernelBench::normal(int64_t count, DType of, float scale) {
  constexpr size_t kDrawn = 1000003;
  std::minstd_rand random(1);
  std::normal_distribution<float> values(0.0f, scale);
  const size_t size = dtype_bytes(of), all = static_cast<size_t>(count), drawn = std::min(all, kDrawn);
  std::vector<std::byte> bytes(drawn * size);
  for (size_t i = 0; i < drawn; ++i) {
    const float value = values(random);
    const uint16_t half = of == DType::kBF16 ? f32_to_bf16(value).bits : f32_to_f16(value).bits;
    std::memcpy(bytes.data() + i * size, of == DType::kF32 ? static_cast<const void*>(&value) : &half, size);
  }
  DeviceBuffer buffer = zeros(static_cast<int64_t>(all * size));
  const DeviceBuffer piece = upload_bytes(bytes.data(), bytes.size());
  for (size_t at = 0; at < all; at += drawn) {
    stream_->copy(buffer.data() + at * size, piece.data(), std::min(drawn, all - at) * size, Link::kWithinDevice);
  }
  stream_->synchronize();
  return buffer;
}

void KernelBench::measure(ordered_json row, const Work& work, const std::function<void()>& call) {
  const double us = median_us(*stream_, call);
  const double memory = ceilings_.read_gb_per_s * 1e3;  // bytes a microsecond
  const double products = ceilings_.mma_sync_tflop_per_s * 1e6;
  const double by_bytes = work.bytes / memory, by_flops = products > 0 ? work.flops / products : 0;
  row["type"] = dtype_name(type);
  row["us"] = digits(us);
  if (work.bytes > 0) row["GB/s"] = digits(work.bytes / us * 1e-3);
  if (work.flops > 0) row["TFLOP/s"] = digits(work.flops / us * 1e-6);
  if (work.bytes > 0 && (work.flops == 0 || products > 0)) row["bound_by"] = by_flops > by_bytes ? "products" : "bytes";
  if (work.bytes > 0) row["of_ceiling"] = digits(std::max(by_bytes, by_flops) / us);
  print(row);
}

ColdCopies::ColdCopies(KernelBench& bench, int64_t elements, DType type, float scale)
    : bytes_(static_cast<uint64_t>(elements) * dtype_bytes(type)),
      copies_(kColdBytes / bytes_ + 1),
      buffer_(bench.normal(elements * static_cast<int64_t>(copies_), type, scale)) {}

}  // namespace headrace::bench

int main(int argc, char** argv) {
  using namespace headrace::bench;
  Args args;
  std::vector<std::string> names;
  for (const Case& each : all_cases()) names.push_back(each.name);
  CLI::App app("Times each kernel at the shape of a model", "kernel_bench");
  add_device(app, &args.device);
  app.add_option("--shape", args.shape);
  app.add_option("--type", args.types)->delimiter(',')->check(CLI::IsMember({"bf16", "f16", "f32"}));
  app.add_option("--weights", args.weights);
  app.add_option("--cache-type", args.cache_types)
      ->delimiter(',')
      ->check(CLI::IsMember({"bf16", "f16", "f32", "int8", "int4"}));
  app.add_option("--rows", args.rows)->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--context", args.context)->check(CLI::Range(1024, 1 << 20));
  app.add_option("--parts", args.part_rows, "read the prefix in parts of so many rows")->check(CLI::NonNegativeNumber);
  app.add_option("--head-dim", args.head_dim, "heads of this size, as many elements in all")
      ->check(CLI::PositiveNumber);
  app.add_option("--only", args.only)->delimiter(',')->check(CLI::IsMember(names));
  app.add_option("--threads", args.threads)->check(CLI::PositiveNumber);
  return parse_and_run(app, argc, argv, [&] { run(args); });
}
