// What the CUDA sources of this folder call of each other. Host code.
#pragma once

#include "kernels/recurrence/op.h"

namespace headrace::kernels::cuda {

// The rows behind the last whole chunk, and the convolution state.
void delta_remainder(const DeltaChunksParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
