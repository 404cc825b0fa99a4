// The sizes of the scratch memory of kernels/recurrence/op.h's chunk form. Internal to the op.
#pragma once

#include "kernels/recurrence/op.h"

namespace headrace::kernels {

// CUDA: fragments of 16 x 16 elements, each as two bf16 (chunk_layout.cuh).
constexpr int64_t kFragmentWords = 64;  // of 16 bytes

// Of one chunk: k, q and the transpose of k, for all key heads.
constexpr int64_t key_matrices_bytes(const DeltaShape& shape) {
  return shape.k_heads * 3 * (kDeltaChunkRows / 16) * ceil_div(shape.k_dim, 16) * kFragmentWords * 16;
}
// Of one chunk and one value head: T, the weights of o, and two factors a row.
constexpr int64_t kValueMatricesBytes =
    2 * (kDeltaChunkRows / 16) * (kDeltaChunkRows / 16) * kFragmentWords * 16 + 2 * kDeltaChunkRows * 4;

// CPU: two matrices of floats for each chunk and value head. They take no more than CUDA's.
constexpr int64_t kCpuMatricesBytes = 2 * kDeltaChunkRows * kDeltaChunkRows * 4;
static_assert(kCpuMatricesBytes <= kValueMatricesBytes);

}  // namespace headrace::kernels
