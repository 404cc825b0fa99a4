// The bodies of kernels/recurrence/op.h. Internal to the op.
#pragma once

#include "kernels/cuda/bodies.h"
#include "kernels/recurrence/op.h"

namespace headrace::kernels {

HEADRACE_BODIES(delta_inputs, DeltaInputsParams)
HEADRACE_BODIES(delta_recurrence, DeltaRecurrenceParams)
HEADRACE_BODIES(delta_commit, DeltaCommitParams)
HEADRACE_BODIES(delta_chunks, DeltaChunksParams)
HEADRACE_BODIES(delta_output, DeltaOutputParams)

}  // namespace headrace::kernels
