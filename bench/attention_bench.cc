// Attention and sampling alone, on the CPU backend, at the shapes of SmolLM2-135M: GFLOP/s in prefill; in decode GB/s
// of K and V beside what a plain sum over the same memory gets (prefix_read_only).
//   attention_bench [--benchmark_filter=prefix] [--benchmark_out=FILE --benchmark_out_format=json]
//   HEADRACE_ISA=avx2 attention_bench, HEADRACE_BENCH_THREADS=1 attention_bench
// Decode takes turns over as many layers' K and V as no cache holds.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cpu_machine.h"
#include "kernels/attention.h"
#include "kernels/sample.h"
#include "offload/cpu_stream.h"
#include "offload/device.h"

namespace headrace {
namespace {

constexpr int64_t kHeads = 9, kKvHeads = 3, kDim = 64, kRow = kHeads * kDim;
constexpr int64_t kSegmentRows = 512, kRows = 15 * kSegmentRows;  // of a prefix: a 7,700-token prompt's
constexpr uint64_t kColdBytes = 96 * kMiB;

bench::CpuMachine& machine() { return bench::cpu_machine(); }

DeviceBuffer zeros(int64_t bytes) { return machine().device->allocate(static_cast<uint64_t>(bytes), "bench"); }

// Normal values: softmax over equal keys would be too kind.
DeviceBuffer normal(int64_t count, DType type) {
  DeviceBuffer buffer = zeros(count * static_cast<int64_t>(dtype_bytes(type)));
  std::minstd_rand random(1);
  std::normal_distribution<float> values;
  for (int64_t i = 0; i < count; ++i) {
    const float value = values(random);
    if (type == DType::kF32) buffer.as<float>()[i] = value;
    if (type == DType::kBF16) buffer.as<bf16>()[i] = f32_to_bf16(value);
    if (type == DType::kF16) buffer.as<f16>()[i] = f32_to_f16(value);
  }
  return buffer;
}

AttentionShape shape(int64_t queries, DType type) {
  return {queries, kHeads, kKvHeads, kDim, kRow, type, type, type, 0.125f};
}

void set_rate(benchmark::State& state, const char* name, double per_call) {
  state.counters[name] = benchmark::Counter(per_call * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
}

void prefill_bench(benchmark::State& state, DType type, int64_t rows) {
  const DeviceBuffer q = normal(rows * kRow, type), out = zeros(static_cast<int64_t>(q.bytes()));
  const DeviceBuffer k = normal(rows * kKvHeads * kDim, type), v = normal(rows * kKvHeads * kDim, type);
  const auto count = static_cast<int32_t>(rows);
  const KvSegment segment = {k.data(), v.data(), 0, count, count};
  PrefillAttentionParams params{};
  params.shape = shape(rows, type);
  params.q = q.data();
  params.segments = &segment;
  params.out = out.data();
  params.segment_count = 1;
  for (auto _ : state) {
    prefill_attention(params, *machine().stream);
    machine().stream->synchronize();
  }
  set_rate(state, "GFLOP/s", 2.0 * static_cast<double>(kRow * rows * (rows + 1)));
}

// The K and V of several layers, each a run of segments.
struct Layers {
  explicit Layers(DType type)
      : segment_bytes(kSegmentRows * kKvHeads * kDim * static_cast<int64_t>(dtype_bytes(type))),
        layer_bytes(kRows / kSegmentRows * 2 * segment_bytes),
        count(static_cast<int64_t>(kColdBytes) / layer_bytes + 1),
        memory(normal(count * layer_bytes / static_cast<int64_t>(dtype_bytes(type)), type)) {}
  const std::byte* next() { return memory.data() + layer_bytes * (turn++ % count); }

  int64_t segment_bytes, layer_bytes, count, turn = 0;
  DeviceBuffer memory;
};

void prefix_bench(benchmark::State& state, DType type, int64_t queries) {
  Layers layers(type);
  const DeviceBuffer q = normal(queries * kRow, type), positions = zeros(queries * 4);
  for (int64_t i = 0; i < queries; ++i) {
    positions.as<int32_t>()[i] = static_cast<int32_t>(kRows + kTailWindow + kPrefixTile);
  }
  const DeviceBuffer o = zeros(queries * kRow * 4), ml = zeros(queries * kHeads * 8);
  const DeviceBuffer scratch_o = zeros(queries * kRow * 4 * kMaxPrefixSegments);
  const DeviceBuffer scratch_ml = zeros(queries * kHeads * 8 * kMaxPrefixSegments);
  PrefixAttentionParams params{};
  params.shape = shape(queries, type);
  params.q = q.data();
  params.positions = positions.as<int32_t>();
  params.state = {o.as<float>(), ml.as<float>()};
  params.scratch = {scratch_o.as<float>(), scratch_ml.as<float>()};
  params.segment_count = kRows / kSegmentRows;
  for (auto _ : state) {
    const std::byte* layer = layers.next();
    for (int64_t i = 0; i < params.segment_count; ++i) {
      const std::byte* k = layer + 2 * i * layers.segment_bytes;
      params.segments[i] = {k, k + layers.segment_bytes, static_cast<int32_t>(i * kSegmentRows), kSegmentRows,
                            kSegmentRows};
    }
    clear_state({params.state, queries, kHeads, kDim}, *machine().stream);
    prefix_attention(params, *machine().stream);
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", static_cast<double>(layers.layer_bytes));
  set_rate(state, "GFLOP/s", 4.0 * static_cast<double>(queries * kRow * kRows));
}

// What the memory gives to the same threads in the same pieces.
void read_bench(benchmark::State& state) {
  Layers layers(DType::kBF16);
  struct Work {
    const std::byte* layer;
    int64_t piece_words, pieces;
  };
  for (auto _ : state) {
    const int64_t pieces = layers.layer_bytes / layers.segment_bytes * kKvHeads;
    const Work work = {layers.next(), layers.layer_bytes / pieces / 8, pieces};
    cpu_stream(*machine().stream).enqueue([work](ThreadPool& pool) {
      pool.parallel_for(work.pieces, [&](int64_t piece, int) {
        const auto* words = reinterpret_cast<const uint64_t*>(work.layer) + piece * work.piece_words;
        uint64_t lanes[32] = {};
        for (int64_t i = 0; i + 32 <= work.piece_words; i += 32) {
          for (int lane = 0; lane < 32; ++lane) lanes[lane] += words[i + lane];
        }
        benchmark::DoNotOptimize(lanes);
      });
    });
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", static_cast<double>(layers.layer_bytes));
}

void tail_bench(benchmark::State& state, DType type, int64_t queries) {
  constexpr int64_t kRingRows = 1024;
  const DeviceBuffer q = normal(queries * kRow, type), out = zeros(static_cast<int64_t>(q.bytes()));
  const DeviceBuffer ring_k = normal(kRingRows * kKvHeads * kDim, type),
                     ring_v = normal(kRingRows * kKvHeads * kDim, type);
  const DeviceBuffer pass_k = normal(queries * kKvHeads * kDim, type), pass_v = normal(queries * kKvHeads * kDim, type);
  const DeviceBuffer o = zeros(queries * kRow * 4), ml = zeros(queries * kHeads * 8),
                     numbers = zeros((queries + 1) * 4);
  const DeviceBuffer path = zeros(queries * 4);
  for (int64_t i = 0; i <= queries; ++i) numbers.as<int32_t>()[i] = kRows + 19;  // positions, and what is committed
  clear_state({{o.as<float>(), ml.as<float>()}, queries, kHeads, kDim}, *machine().stream);
  TailAttentionParams params{};
  params.shape = shape(queries, type);
  params.q = q.data();
  params.positions = numbers.as<int32_t>();
  params.committed = numbers.as<int32_t>() + queries;
  params.path = path.as<int32_t>();
  params.ring_k = ring_k.data();
  params.ring_v = ring_v.data();
  params.pass_k = pass_k.data();
  params.pass_v = pass_v.data();
  params.state = {o.as<float>(), ml.as<float>()};
  params.out = out.data();
  params.path_stride = 1;
  params.ring_rows = kRingRows;
  params.pass_rows = queries;
  for (auto _ : state) {
    tail_attention(params, *machine().stream);
    machine().stream->synchronize();
  }
}

void sample_bench(benchmark::State& state, int64_t rows, int64_t vocab, const SamplingSettings& settings) {
  const DeviceBuffer logits = normal(rows * vocab, DType::kF32), positions = zeros(rows * 4), tokens = zeros(rows * 4);
  for (int64_t i = 0; i < rows * vocab; ++i) logits.as<float>()[i] *= 3;
  SampleParams params{
      logits.as<float>(), positions.as<int32_t>(), tokens.as<int32_t>(), nullptr, rows, vocab, settings};
  for (auto _ : state) {
    sample(params, *machine().stream);
    machine().stream->synchronize();
  }
  set_rate(state, "GB/s", static_cast<double>(logits.bytes()));
}

template <typename Bench>
void add(const std::string& name, const Bench& bench) {
  benchmark::RegisterBenchmark(name.c_str(), bench)->UseRealTime()->Unit(benchmark::kMicrosecond)->MinTime(0.1);
}

void add_all() {
  for (DType type : {DType::kBF16, DType::kF32, DType::kF16}) {
    const char* name = dtype_name(type);
    for (int64_t rows : {1024, 7700}) {
      add(str("prefill_attention/", name, "/rows:", rows), [=](auto& state) { prefill_bench(state, type, rows); });
    }
    for (int64_t queries : {1, 8, 64}) {
      add(str("prefix_attention/", name, "/queries:", queries),
          [=](auto& state) { prefix_bench(state, type, queries); });
      add(str("tail_attention/", name, "/queries:", queries), [=](auto& state) { tail_bench(state, type, queries); });
    }
  }
  add("prefix_read_only", read_bench);
  SamplingSettings greedy, plain, filtered;
  plain.temperature = filtered.temperature = 0.8f;
  filtered.top_k = 40;
  filtered.top_p = 0.95f;
  filtered.min_p = 0.05f;
  SamplingSettings top_p = plain;
  top_p.top_p = 0.95f;
  for (int64_t vocab : {49152, 151936}) {
    add(str("sample/greedy/", vocab), [=](auto& state) { sample_bench(state, 1, vocab, greedy); });
    add(str("sample/temperature/", vocab), [=](auto& state) { sample_bench(state, 1, vocab, plain); });
    add(str("sample/top_p/", vocab), [=](auto& state) { sample_bench(state, 1, vocab, top_p); });
    add(str("sample/top_k,top_p,min_p/", vocab), [=](auto& state) { sample_bench(state, 1, vocab, filtered); });
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  headrace::add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
