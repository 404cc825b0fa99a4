// A row of a head in a warp's registers, its rotation and its quantisation (kernels/int8_attention/op.h), and where a
// layer's segments have a row. Element lane * kEach + i is v[i]. Device code, internal to the folder.
#pragma once

#include <cstdint>

#include "kernels/attention/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/int8_attention/layout.h"

namespace headrace::kernels::cuda {

// The segment that has a row. REQUIRES: one has it.
__device__ inline const KvSegment& segment_at(const KvSegment* segments, int64_t count, int position) {
  int low = 0, high = static_cast<int>(count) - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (segments[middle].position <= position) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return segments[low];
}
__device__ inline int64_t row_index(const KvSegment& segment, int kv_head, int position) {
  return int64_t{kv_head} * segment.stride_rows + position - segment.position;
}

struct Int8Scale {
  float scale, inverse;  // inverse 0: every value becomes 0
};
// `top`: the bits of the largest magnitude.
__device__ inline Int8Scale int8_scale(int top) {
  const float largest = __int_as_float(top);
  if (top >= 0x7f800000) return {__int_as_float(0x7fffffff), 0.0f};
  if (largest < 0x1p-120f) return {0.0f, 0.0f};  // kTinyInt8Row
  return {__fdiv_rn(largest, 127.0f), __fdiv_rn(127.0f, largest)};
}
__device__ inline int magnitude_bits(float value) { return __float_as_int(value) & 0x7fffffff; }
__device__ inline uint8_t int8_of(float value, const Int8Scale& scale) {
  return scale.inverse == 0.0f ? uint8_t{0} : static_cast<uint8_t>(__float2int_rn(__fmul_rn(value, scale.inverse)));
}

template <int kDim>
struct WarpRow {
  static constexpr int kEach = kDim / 32;
  float v[kEach];

  __device__ static int first() { return static_cast<int>(threadIdx.x) % 32 * kEach; }
  // Columns beyond `dim` are zero.
  __device__ void load(const void* from, DType type, int64_t index, int dim) {
#pragma unroll
    for (int i = 0; i < kEach; i += 2) {
      const float2 pair = first() + i < dim ? load_pair(from, type, index + first() + i) : float2{0.0f, 0.0f};
      v[i] = pair.x;
      v[i + 1] = pair.y;
    }
  }
  // Blocks of `block` elements; the butterflies have distances 1, 2, 4, … in this order.
  __device__ void rotate(int block) {
#pragma unroll
    for (int apart = 1; apart < kEach; apart *= 2) {
      if (apart >= block) break;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if ((i & apart) != 0) continue;
        const float a = v[i], b = v[i + apart];
        v[i] = __fadd_rn(a, b);
        v[i + apart] = __fsub_rn(a, b);
      }
    }
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      if (kEach * apart >= block) break;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float other = __shfl_xor_sync(~0u, v[i], apart);
        v[i] = (threadIdx.x & static_cast<unsigned>(apart)) != 0 ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
      }
    }
  }
  __device__ Int8Scale scale() const {
    int top = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) top = max(top, magnitude_bits(v[i]));
    return int8_scale(__reduce_max_sync(~0u, top));
  }
  // Elements [i, i + 4) as bytes; of kEach 2 two of them.
  __device__ uint32_t bytes(int i, const Int8Scale& scale) const {
    uint32_t word = 0;
#pragma unroll
    for (int j = 0; j < 4 && i + j < kEach; ++j) word |= uint32_t{int8_of(v[i + j], scale)} << 8 * j;
    return word;
  }
  // Stores the lane's elements; `at`(d): the address of elements d to d + 3.
  template <typename At>
  __device__ void store(const Int8Scale& scale, const At& at) const {
    if constexpr (kEach == 2) {
      *reinterpret_cast<uint16_t*>(at(first())) = static_cast<uint16_t>(bytes(0, scale));
    } else {
#pragma unroll
      for (int i = 0; i < kEach; i += 4) *reinterpret_cast<uint32_t*>(at(first() + i)) = bytes(i, scale);
    }
  }
};

}  // namespace headrace::kernels::cuda
