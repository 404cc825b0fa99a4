// Measures a device's kernels at the sizes of an 8B model (smaller ones on a CPU): the rates that determine the
// time of a step and of prefill (cache/cost.h). Uses the product's own kernels and attention's, on generated data.
// Takes up to 1 GiB of device memory while it measures. Thread: one.
#pragma once

#include "offload/device/device.h"

namespace headrace {

// One rate: the median round, and the slowest and the fastest.
struct ComputeRate {
  double value = 0, low = 0, high = 0;
};
struct ComputeRates {
  ComputeRate weights_gb_per_s;       // a decode product's matrix read, for one group of rows
  ComputeRate product_tflop_per_s;    // a prefill group's product
  ComputeRate attention_tflop_per_s;  // prefill attention
  ComputeRate kv_gb_per_s;            // prefix attention of one query
  ComputeRate queries_tflop_per_s;    // prefix attention of 64 queries
  // Of prefill in 8 bits, in T operations/s.
  ComputeRate int8_product_tflop_per_s, int8_attention_tflop_per_s;
};
// Throws Error(kDoesNotFit) if the budgets have no room.
ComputeRates measure_compute(Device& device, bool quick);

}  // namespace headrace
