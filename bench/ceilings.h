// Peak rates for comparison with a kernel's figures, measured on the same device in the same run. Thread: one.
#pragma once

#include <functional>

#include "offload/device/device.h"

namespace headrace::bench {

struct Ceilings {
  double read_gb_per_s = 0;         // the device's memory, read only
  double mma_sync_tflop_per_s = 0;  // bf16, fp32 sums, mma.sync from registers: the peak of code for sm_80; 0: a CPU
};

// Microseconds per call: the host's clock around enough enqueued calls for about 20 ms, the median of five rounds.
double median_us(Stream& stream, const std::function<void()>& call);

// Takes about a second and 2 GiB. REQUIRES: a CUDA stream.
Ceilings measure_gpu_ceilings(Device& device, Stream& stream);
// Reads only, by all threads of the device. REQUIRES: a CPU compute stream.
Ceilings measure_cpu_ceilings(Device& device, Stream& stream);

}  // namespace headrace::bench
