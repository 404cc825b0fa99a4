// The CPU device and compute stream that a bench of the CPU bodies runs on; HEADRACE_BENCH_THREADS sets its threads.
#pragma once

#include <cstdlib>
#include <memory>

#include "offload/device.h"

namespace headrace::bench {

struct CpuMachine {
  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

inline CpuMachine& cpu_machine() {  // never destroyed: benchmarks may use it until the process ends
  static CpuMachine* const made = [] {
    DeviceOptions options;
    options.choice = DeviceChoice::kCpu;
    if (const char* threads = std::getenv("HEADRACE_BENCH_THREADS")) options.threads = std::atoi(threads);
    auto* fresh = new CpuMachine;
    fresh->device = open_device(options);
    fresh->stream = fresh->device->make_stream("bench", StreamRole::kCompute);
    return fresh;
  }();
  return *made;
}

}  // namespace headrace::bench
