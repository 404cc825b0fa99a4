// A row of a head in a warp's registers, its rotation and its quantisation (kernels/int8_attention/op.h), and where a
// layer's segments have a row. Element lane * kEach + i is v[i]. Device code, internal to the folder.
#pragma once

#include <cstdint>

#include "kernels/attention/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/int8/quantise.cuh"
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

__device__ inline int magnitude_bits(float value) { return __float_as_int(value) & 0x7fffffff; }

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
  __device__ RowQuant quant() const {
    int top = 0;  // as integers magnitudes have the same order, above them infinity and then NaN
#pragma unroll
    for (int i = 0; i < kEach; ++i) top = max(top, magnitude_bits(v[i]));
    return RowQuant(__int_as_float(__reduce_max_sync(~0u, top)));
  }
  // Stores the lane's elements; `at`(d): the address of elements d to d + 3.
  template <typename At>
  __device__ void store(const RowQuant& quant, const At& at) const {
    if constexpr (kEach == 2) {
      *reinterpret_cast<uint16_t*>(at(first())) = static_cast<uint16_t>(quant.half_word_of(v));
    } else {
#pragma unroll
      for (int i = 0; i < kEach; i += 4) *reinterpret_cast<uint32_t*>(at(first() + i)) = quant.word_of(v + i);
    }
  }
};

}  // namespace headrace::kernels::cuda
