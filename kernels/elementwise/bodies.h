// The bodies of kernels/elementwise/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/elementwise/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(embedding, EmbeddingParams)
HEADRACE_BODIES(rms_norm, RmsNormParams)
HEADRACE_BODIES(rope, RopeParams)
HEADRACE_BODIES(rope_table, RopeTableParams)
HEADRACE_BODIES(row_ids, RowIdsParams)
HEADRACE_BODIES(silu_mul, SiluMulParams)
HEADRACE_BODIES(gate_rows, GateRowsParams)
HEADRACE_BODIES(scale, ScaleParams)
HEADRACE_BODIES(softcap, SoftcapParams)
HEADRACE_BODIES(convert, ConvertParams)

}  // namespace headrace::kernels
