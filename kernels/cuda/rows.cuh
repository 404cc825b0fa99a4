// Rows of any type as bytes and as chunks, for the kernels that move and reduce rows. Device code.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "kernels/cuda/chunk.cuh"

namespace headrace::kernels::cuda {

__device__ inline int64_t bytes_of(DType type) { return type == DType::kF32 ? 4 : 2; }
__device__ inline const char* at(const void* base, int64_t element, DType type) {
  return static_cast<const char*>(base) + element * bytes_of(type);
}
__device__ inline char* at(void* base, int64_t element, DType type) {
  return static_cast<char*>(base) + element * bytes_of(type);
}

// The number of elements in the chunk at `begin` of a row of `total`.
__device__ inline int chunk_count(int64_t total, int64_t begin) {
  const int64_t left = total - begin;
  return static_cast<int>(left < 0 ? 0 : left < kChunk ? left : kChunk);
}

__device__ inline bool may_copy_wide(const void* to, const void* from, int64_t bytes) {
  return (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | static_cast<uintptr_t>(bytes)) % 16 ==
         0;
}

// Copies with `threads` threads; this one is number `thread`.
__device__ inline void copy_row(void* to, const void* from, int64_t bytes, bool aligned, unsigned thread,
                                unsigned threads) {
  if (aligned) {
    for (int64_t i = thread; i < bytes / 16; i += threads) {
      static_cast<uint4*>(to)[i] = static_cast<const uint4*>(from)[i];
    }
  } else {  // every type has an even number of bytes
    for (int64_t i = thread; i < bytes / 2; i += threads) {
      static_cast<uint16_t*>(to)[i] = static_cast<const uint16_t*>(from)[i];
    }
  }
}
// With all the threads of a block.
__device__ inline void copy_row(void* to, const void* from, int64_t bytes, bool aligned) {
  copy_row(to, from, bytes, aligned, threadIdx.x, blockDim.x);
}

}  // namespace headrace::kernels::cuda
