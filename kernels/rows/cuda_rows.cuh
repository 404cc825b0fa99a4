// Low-bit rows (kernels/rows/op.h) for kernels that move rows: where a row is in its plane, and int8 as elements.
// Device code, internal to kernels.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "cache/base.h"
#include "kernels/cuda/chunk.cuh"

namespace headrace::kernels::cuda {

__device__ inline bool is_low_bit(DType type) { return type == DType::kInt8 || type == DType::kInt4; }
__device__ inline int64_t value_bytes(DType type, int64_t head_dim) {
  return type == DType::kInt8   ? head_dim
         : type == DType::kInt4 ? head_dim / 2
         : type == DType::kF32  ? 4 * head_dim
                                : 2 * head_dim;
}
__device__ inline int64_t parameter_count(DType type, int64_t head_dim) {
  return type == DType::kInt8 ? 1 : type == DType::kInt4 ? head_dim / kInt4Group * 2 : 0;
}

struct DevicePlaneRow {
  char* values;
  __half* parameters;
};
__device__ inline DevicePlaneRow plane_row(const void* plane, DType type, int64_t kv_heads, int64_t rows,
                                           int64_t head_dim, int64_t head, int64_t row) {
  char* const base = static_cast<char*>(const_cast<void*>(plane));
  const int64_t index = head * rows + row, bytes = value_bytes(type, head_dim);
  return {base + index * bytes,
          reinterpret_cast<__half*>(base + kv_heads * rows * bytes) + index * parameter_count(type, head_dim)};
}

// A row of int8 as elements of `type`, value times scale rounded once, by `threads` threads.
__device__ inline void dequantise_row(const DevicePlaneRow& from, void* to, DType type, int64_t head_dim,
                                      unsigned thread, unsigned threads) {
  const float scale = __half2float(*from.parameters);
  for (int64_t i = thread; i < head_dim; i += threads) {
    store_one(type, to, i, __fmul_rn(static_cast<float>(reinterpret_cast<const signed char*>(from.values)[i]), scale));
  }
}

}  // namespace headrace::kernels::cuda
