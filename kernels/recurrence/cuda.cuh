// What the CUDA sources of this folder call of each other. Host code.
#pragma once

#include "kernels/recurrence/op.h"

namespace headrace::kernels::cuda {

// What the walk over whole chunks multiplies with, into scratch memory (chunk_layout.cuh).
void delta_chunk_matrices(const DeltaChunksParams& params, Stream& stream);
// The rows behind the last whole chunk, and the convolution state.
void delta_remainder(const DeltaChunksParams& params, Stream& stream);

}  // namespace headrace::kernels::cuda
