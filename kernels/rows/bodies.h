// The bodies of kernels/rows/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/rows/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(quantise_rows, RowsParams)
HEADRACE_BODIES(dequantise_rows, RowsParams)
HEADRACE_BODIES(quantise_ring, QuantiseRingParams)
HEADRACE_BODIES(encode_remainders, EncodeRemaindersParams)
HEADRACE_BODIES(decode_remainders, DecodeRemaindersParams)

}  // namespace headrace::kernels
