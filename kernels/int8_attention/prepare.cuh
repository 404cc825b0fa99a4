// What int8_attention() computes before it walks the tiles in 8 bits. Host code, internal to the folder.
#pragma once

#include "kernels/int8_attention/op.h"
#include "offload/device/cuda_stream.h"

namespace headrace::kernels::cuda {

// Fills the workspace: the queries in 8 bits, their scales and q.c, and the states of their own tiles.
void prepare_queries(const Int8AttentionParams& params, CudaStream& stream);

}  // namespace headrace::kernels::cuda
