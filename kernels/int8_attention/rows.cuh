// A row of a head in a warp's registers, its rotation and its quantisation (kernels/int8_attention/op.h), and where a
// layer's segments have a row. Element i * 32 + lane is v[i]. Device code, internal to the folder.
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

  // Columns beyond `dim` are zero.
  __device__ void load(const void* from, DType type, int64_t index, int dim) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) v[i] = i * 32 + lane < dim ? load_one(from, type, index + i * 32 + lane) : 0.0f;
  }
  // Blocks of `block` elements; the butterflies have distances 1, 2, 4, … in this order.
  __device__ void rotate(int block) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
      if (apart >= block) break;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float other = __shfl_xor_sync(~0u, v[i], apart);
        v[i] = (lane & apart) != 0 ? __fsub_rn(other, v[i]) : __fadd_rn(v[i], other);
      }
    }
#pragma unroll
    for (int apart = 1; apart < kEach; apart *= 2) {
      if (32 * apart >= block) break;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if ((i & apart) != 0) continue;
        const float a = v[i], b = v[i + apart];
        v[i] = __fadd_rn(a, b);
        v[i + apart] = __fsub_rn(a, b);
      }
    }
  }
  __device__ Int8Scale scale() const {
    int top = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) top = max(top, magnitude_bits(v[i]));
    return int8_scale(__reduce_max_sync(~0u, top));
  }
};

}  // namespace headrace::kernels::cuda
