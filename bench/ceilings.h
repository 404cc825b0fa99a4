// The rates that a kernel's figures are compared with, measured on the same device in the same run. Thread: one.
#pragma once

#include <functional>

#include "offload/device/device.h"

namespace headrace::bench {

struct Ceilings {
  double copy_gb_per_s = 0;         // within the device, read and written; 0: not measured
  double read_gb_per_s = 0;         // the device's memory, read only
  double product_tflop_per_s = 0;   // bf16, fp32 sums: cuBLASLt's best of its first algorithms at 8192^3
  double mma_sync_tflop_per_s = 0;  // the same type by mma.sync out of registers: what code for sm_80 can reach
};

// Microseconds a call: the host's clock around as many enqueued calls as take some 20 ms, the median of five rounds.
double median_us(Stream& stream, const std::function<void()>& call);

// Takes about a second and 2 GiB. REQUIRES: a CUDA stream.
Ceilings measure_gpu_ceilings(Device& device, Stream& stream);
// Reads alone, by all threads of the device. REQUIRES: a CPU compute stream.
Ceilings measure_cpu_ceilings(Device& device, Stream& stream);

}  // namespace headrace::bench
