// The bodies of kernels/int8_attention/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/int8_attention/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(int8_centre, Int8CentreParams)
HEADRACE_BODIES(int8_kv, Int8KvParams)
HEADRACE_BODIES(int8_attention, Int8AttentionParams)

}  // namespace headrace::kernels
