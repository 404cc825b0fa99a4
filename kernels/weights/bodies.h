// The bodies of kernels/weights/op.h. The CPU keeps a part's rows as the file has them, one after another. Internal to
// the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/weights/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(store_weight, StoreWeightParams)
HEADRACE_BODIES(dequantise, DequantiseParams)

}  // namespace headrace::kernels
