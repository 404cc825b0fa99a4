// What a device's kernels reach at the sizes of an 8B model (on a CPU smaller ones): the four rates that a step's and a
// prefill's time is made of (cache/cost.h). The product's own kernels and attention's, on made-up data. Takes up to
// 1 GiB of device memory while it measures. Thread: one.
#pragma once

#include "offload/device/device.h"

namespace headrace {

// One rate: of the median round, and of the slowest and the fastest.
struct ComputeRate {
  double value = 0, low = 0, high = 0;
};
struct ComputeRates {
  ComputeRate weights_gb_per_s;       // a decode product's matrix read, for one group of rows
  ComputeRate product_tflop_per_s;    // a prefill group's product
  ComputeRate attention_tflop_per_s;  // prefill attention
  ComputeRate kv_gb_per_s;            // prefix attention of one query
  ComputeRate queries_tflop_per_s;    // of 64
};
// Throws Error(kDoesNotFit) where the budgets have no room.
ComputeRates measure_compute(Device& device, bool quick);

}  // namespace headrace
