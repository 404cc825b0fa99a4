// Where int8_attention() keeps what it makes of its queries (Kv8Workspace). Device code, internal to the folder.
#pragma once

#include "kernels/int8_attention/layout.h"
#include "kernels/int8_attention/op.h"

namespace headrace::kernels::cuda {

__device__ inline float* own_o(const Int8AttentionParams& params, const Kv8Workspace& at, int64_t row) {
  return reinterpret_cast<float*>(params.workspace + at.o) + row * params.shape.head_dim;
}
__device__ inline float2* own_ml(const Int8AttentionParams& params, const Kv8Workspace& at, int64_t row) {
  return reinterpret_cast<float2*>(params.workspace + at.ml) + row;
}
__device__ inline Kv8Workspace workspace_of(const AttentionShape& shape) {
  return kv8_workspace(shape.queries * shape.heads, shape.head_dim);
}

}  // namespace headrace::kernels::cuda
