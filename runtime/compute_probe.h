// What a device's kernels reach at the sizes of an 8B model (on a CPU smaller ones): the four rates that a step's and a
// prefill's time is made of (cache/cost.h). The product's own kernels and attention's, on made-up data. Takes up to
// 1 GiB of device memory while it measures. Thread: one.
#pragma once

#include "offload/device.h"

namespace headrace {

struct ComputeRates {
  double weights_gb_per_s = 0;       // a decode product's matrix read, for one group of rows
  double product_tflop_per_s = 0;    // a prefill group's product
  double attention_tflop_per_s = 0;  // prefill attention
  double kv_gb_per_s = 0;            // prefix attention of one query
  double queries_tflop_per_s = 0;    // of 64
};
// Throws Error(kDoesNotFit) where the budgets have no room.
ComputeRates measure_compute(Device& device, bool quick);

}  // namespace headrace
