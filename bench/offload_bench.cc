// What the CPU backend's mechanism costs: starting and ending a parallel loop, enqueueing a task, handing work from one
// stream to another, copying. A decode step makes some 300 parallel loops, so that 3 us a loop are 1 ms a step.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "cache/base.h"
#include "offload/device/cpu_stream.h"
#include "offload/device/device.h"
#include "offload/host/thread_pool.h"

namespace headrace {
namespace {

std::unique_ptr<Device> open_cpu() {
  return open_device({.choice = DeviceChoice::kCpu, .vram_bytes = kGiB, .host_mem_bytes = 2 * kGiB});
}

void spin_us(int64_t us) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(us);
  while (std::chrono::steady_clock::now() < end) benchmark::ClobberMemory();
}

// Threads, indices, and microseconds that pass between two loops: beyond the spin the workers sleep.
void BM_ParallelFor(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const int64_t count = state.range(1), gap_us = state.range(2);
  double seconds = 0;
  for (auto _ : state) {
    if (gap_us != 0) spin_us(gap_us);
    const auto start = std::chrono::steady_clock::now();
    pool.parallel_for(count, [](int64_t index, int) { benchmark::DoNotOptimize(index); });
    seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    state.SetIterationTime(seconds);
  }
}
BENCHMARK(BM_ParallelFor)
    ->ArgNames({"threads", "count", "gap_us"})
    ->Args({1, 64, 0})
    ->Args({2, 2, 0})
    ->Args({2, 64, 0})
    ->Args({2, 4096, 0})
    ->Args({2, 64, 5})
    ->Args({2, 64, 200})
    ->UseManualTime();

// 100 us of work a loop, split over the threads: what is above 100 / threads is the loop's cost.
void BM_ParallelForWork(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    pool.parallel_for(20, [](int64_t, int) { spin_us(5); });
  }
}
BENCHMARK(BM_ParallelForWork)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime();

// The caller's cost of a task of 256 bytes, and its cost from end to end.
void BM_Enqueue(benchmark::State& state) {
  const auto device = open_cpu();
  const auto stream = device->make_stream("compute", StreamRole::kCompute);
  struct Task {
    char params[256];
    void operator()(ThreadPool&) const {}
  };
  int64_t enqueued = 0;
  for (auto _ : state) {
    cpu_stream(*stream).enqueue(Task{});
    if (++enqueued % 128 == 0) {
      state.PauseTiming();
      stream->synchronize();
      state.ResumeTiming();
    }
  }
}
BENCHMARK(BM_Enqueue)->UseRealTime();

void BM_EnqueueThroughput(benchmark::State& state) {
  const auto device = open_cpu();
  const auto stream = device->make_stream("compute", StreamRole::kCompute);
  for (auto _ : state) {
    for (int i = 0; i < 1000; ++i) cpu_stream(*stream).enqueue([](ThreadPool&) {});
    stream->synchronize();
  }
  state.SetItemsProcessed(state.iterations() * 1000);
}
BENCHMARK(BM_EnqueueThroughput)->UseRealTime();

void BM_EnqueueAndSynchronize(benchmark::State& state) {
  const auto device = open_cpu();
  const auto stream = device->make_stream("compute", StreamRole::kCompute);
  for (auto _ : state) {
    cpu_stream(*stream).enqueue([](ThreadPool&) {});
    stream->synchronize();
  }
}
BENCHMARK(BM_EnqueueAndSynchronize)->UseRealTime();

// From one stream to the other and back, all enqueued ahead: the time of two hand-overs.
void BM_EventPingPong(benchmark::State& state) {
  const auto device = open_cpu();
  const auto copy = device->make_stream("copy", StreamRole::kCopy);
  const auto compute = device->make_stream("compute", StreamRole::kCompute);
  const auto there = device->make_event(), back = device->make_event();
  for (auto _ : state) {
    copy->wait(*back);
    cpu_stream(*copy).enqueue([](ThreadPool&) {});
    copy->record(*there);
    compute->wait(*there);
    cpu_stream(*compute).enqueue([](ThreadPool&) {});
    compute->record(*back);
  }
  compute->synchronize();
}
BENCHMARK(BM_EventPingPong)->UseRealTime();

void BM_Copy(benchmark::State& state) {
  const auto device = open_cpu();
  const auto bytes = static_cast<uint64_t>(state.range(0));
  PinnedBuffer source = device->allocate_pinned(bytes, "source");
  DeviceBuffer destination = device->allocate(bytes, "destination");
  std::fill(source.data(), source.data() + bytes, std::byte{1});  // so that it is memory, not the zero page
  const auto stream = device->make_stream("copy", StreamRole::kCopy);
  for (auto _ : state) {
    stream->copy(destination.data(), source.data(), bytes, Link::kHostToDevice);
    stream->synchronize();
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Copy)->Arg(64 << 10)->Arg(16 << 20)->Arg(256 << 20)->UseRealTime();

}  // namespace
}  // namespace headrace

BENCHMARK_MAIN();
