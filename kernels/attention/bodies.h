// The bodies of kernels/attention/op.h. Internal to the op.
#pragma once

#include "kernels/attention/op.h"
#include "kernels/cuda/bodies.h"

namespace headrace::kernels {

HEADRACE_BODIES(prefill_attention, PrefillAttentionParams)
HEADRACE_BODIES(prefix_attention, PrefixAttentionParams)
HEADRACE_BODIES(tail_attention, TailAttentionParams)

}  // namespace headrace::kernels
