// The bodies of kernels/int8/op.h and grouped.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/int8/grouped.h"
#include "kernels/int8/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(int8_weight, Int8WeightParams)
HEADRACE_BODIES(int8_activation, Int8ActivationParams)
HEADRACE_BODIES(int8_product, Int8ProductParams)
HEADRACE_BODIES(int8_spread, Int8SpreadParams)
HEADRACE_BODIES(int8_grouped_product, Int8GroupedProductParams)

namespace cpu {
uint64_t int8_thread_bytes(int64_t cols);
}

}  // namespace headrace::kernels
