// What a GPU gives at best, measured: the lines that a kernel's figures are held against. Thread: one.
#pragma once

#include "offload/device.h"

namespace headrace::bench {

struct GpuCeilings {
  double copy_gb_per_s = 0;         // within the device, read and written
  double read_gb_per_s = 0;         // device memory, read alone
  double product_tflop_per_s = 0;   // bf16, fp32 sums: cuBLASLt's best of its first algorithms at 8192^3
  double mma_sync_tflop_per_s = 0;  // the same type by mma.sync out of registers: what code for sm_80 can reach
};

// Takes about a second and 2 GiB. REQUIRES: a CUDA stream.
GpuCeilings measure_ceilings(Device& device, Stream& stream);

}  // namespace headrace::bench
