// KV rows as int8 and int4 (kernels/rows/op.h). A warp makes a row; its bits are those of the CPU body.
#include <cuda_fp16.h>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/rows/bodies.h"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kMaxEach = kMaxRowHeadDim / 32;  // elements of a row for each lane
constexpr uint32_t kInfinity = 0x7f800000;

// `value` rounded to f16; NaN if that is not finite.
__device__ __half parameter_of(float value) {
  const __half rounded = __float2half_rn(value);
  return (__half_as_ushort(rounded) & 0x7fff) >= 0x7c00 ? __ushort_as_half(0x7e00) : rounded;
}
__device__ bool usable(__half scale) { return (__half_as_ushort(scale) & 0x7fff) - 1u < 0x7bffu; }  // not 0 nor NaN

__device__ uint32_t magnitude_of(float value) { return __float_as_uint(value) & 0x7fffffff; }
__device__ int round_within(float value, float low, float high) {
  return __float2int_rn(fminf(fmaxf(value, low), high));
}

// A row in a warp: lane i has elements i, i + 32, ...
struct RowOfWarp {
  float x[kMaxEach];

  __device__ void load(const void* from, DType type, int dim) {
#pragma unroll
    for (int i = 0; i < kMaxEach; ++i) {
      const int d = i * 32 + static_cast<int>(threadIdx.x % 32);
      x[i] = d < dim ? load_one(type, from, d) : 0.0f;
    }
  }

  // Multiplies by the orthonormal Hadamard matrix of `dim` elements.
  __device__ void rotate(int dim) {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int half = 1; half < 32; half *= 2) {
#pragma unroll
      for (int i = 0; i < kMaxEach; ++i) {
        const float other = __shfl_xor_sync(kAllLanes, x[i], half);
        x[i] = (lane & half) == 0 ? __fadd_rn(x[i], other) : __fsub_rn(other, x[i]);
      }
    }
#pragma unroll
    for (int half = 1; half < kMaxEach; half *= 2) {
      if (half * 32 >= dim) break;
#pragma unroll
      for (int i = 0; i < kMaxEach; ++i) {
        if (i / half % 2 != 0) continue;
        const float a = x[i], b = x[i + half];
        x[i] = __fadd_rn(a, b);
        x[i + half] = __fsub_rn(a, b);
      }
    }
    const float norm = __fdiv_rn(1.0f, __fsqrt_rn(static_cast<float>(dim)));
#pragma unroll
    for (int i = 0; i < kMaxEach; ++i) x[i] = __fmul_rn(x[i], norm);
  }

  __device__ void store_int8(const DevicePlaneRow& to, int dim) const {
    uint32_t most = 0;  // a NaN is larger than infinity, and infinity larger than the rest
#pragma unroll
    for (int i = 0; i < kMaxEach; ++i) most = max(most, magnitude_of(x[i]));
    most = __reduce_max_sync(kAllLanes, most);
    const __half scale = parameter_of(__fdiv_rn(__uint_as_float(most), 127.0f));
    if (threadIdx.x % 32 == 0) *to.parameters = scale;
    const float divisor = __half2float(scale);
#pragma unroll
    for (int i = 0; i < kMaxEach; ++i) {
      const int d = i * 32 + static_cast<int>(threadIdx.x % 32);
      if (d >= dim) break;
      to.values[d] = static_cast<char>(usable(scale) ? round_within(__fdiv_rn(x[i], divisor), -127.0f, 127.0f) : 0);
    }
  }

  // Register i is a group.
  __device__ void store_int4(const DevicePlaneRow& to, int dim) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kMaxEach; ++i) {
      if (i * 32 >= dim) break;
      float most = x[i], least = x[i];
#pragma unroll
      for (int distance = 16; distance > 0; distance /= 2) {
        most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, distance));
        least = fminf(least, __shfl_xor_sync(kAllLanes, least, distance));
      }
      __half scale = parameter_of(__fdiv_rn(__fsub_rn(most, least), 15.0f)), minimum = parameter_of(least);
      const bool finite =
          __reduce_max_sync(kAllLanes, magnitude_of(x[i])) < kInfinity && !__hisnan(scale) && !__hisnan(minimum);
      if (!finite) scale = minimum = __ushort_as_half(0x7e00);
      if (lane == 0) {
        to.parameters[2 * i] = scale;
        to.parameters[2 * i + 1] = minimum;
      }
      const float above = __fsub_rn(x[i], __half2float(minimum));
      const int value = usable(scale) ? round_within(__fdiv_rn(above, __half2float(scale)), 0.0f, 15.0f) : 0;
      const int high = __shfl_down_sync(kAllLanes, value, kInt4Group / 2);
      if (lane < kInt4Group / 2) to.values[i * (kInt4Group / 2) + lane] = static_cast<char>(value | high << 4);
    }
  }
};

// Quantises or copies a row, by a warp.
__device__ void store_row(const void* from, DType type, const DevicePlaneRow& to, DType stored, int dim) {
  if (!is_low_bit(stored)) {
    const int64_t bytes = value_bytes(type, dim);
    return copy_row(to.values, from, bytes, may_copy_wide(to.values, from, bytes), threadIdx.x % 32, 32);
  }
  RowOfWarp row;
  row.load(from, type, dim);
  if (stored == DType::kInt4) {
    row.rotate(dim);
    row.store_int4(to, dim);
  } else {
    row.store_int8(to, dim);
  }
}

// The row of K (y = 0) or V (y = 1) that is this warp's among `count` rows of `heads` heads; less than 2^31 in all.
struct WarpItem {
  uint32_t head, row;
  bool exists;

  __device__ WarpItem(int64_t heads, int64_t count) {
    const uint32_t item = blockIdx.x * kWarps + threadIdx.x / 32, each = static_cast<uint32_t>(count);
    head = item / each;
    row = item % each;
    exists = head < heads;
  }
};

__global__ void __launch_bounds__(kThreads) quantise_rows_kernel(const __grid_constant__ RowsParams p) {
  const WarpItem item(p.kv_heads, p.count);
  if (!item.exists) return;
  const bool k = blockIdx.y == 0;
  const DType type = k ? p.k_type : p.v_type, stored = k ? p.stored_k_type : p.stored_v_type;
  const void* const from = k ? p.from.k : p.from.v;
  const void* const to = k ? p.to.k : p.to.v;
  if (from == to && !is_low_bit(stored)) return;
  const int64_t row = p.first_row + item.row;
  const DevicePlaneRow exact = plane_row(from, type, p.kv_heads, p.from.stride_rows, p.head_dim, item.head, row);
  const DevicePlaneRow low = plane_row(to, stored, p.kv_heads, p.to.stride_rows, p.head_dim, item.head, row);
  store_row(exact.values, type, low, stored, static_cast<int>(p.head_dim));
  if (!p.write_back || !is_low_bit(stored)) return;
  __syncwarp();
  dequantise_row(low, exact.values, type, p.head_dim, threadIdx.x % 32, 32);
}

__global__ void __launch_bounds__(kThreads) dequantise_rows_kernel(const __grid_constant__ RowsParams p) {
  const WarpItem item(p.kv_heads, p.count);
  if (!item.exists) return;
  const bool k = blockIdx.y == 0;
  const DType type = k ? p.k_type : p.v_type, stored = k ? p.stored_k_type : p.stored_v_type;
  const void* const from = k ? p.from.k : p.from.v;
  const void* const to = k ? p.to.k : p.to.v;
  if (from == to && !is_low_bit(stored)) return;
  const int64_t row = p.first_row + item.row;
  const DevicePlaneRow low = plane_row(from, stored, p.kv_heads, p.from.stride_rows, p.head_dim, item.head, row);
  const DevicePlaneRow exact = plane_row(to, type, p.kv_heads, p.to.stride_rows, p.head_dim, item.head, row);
  if (is_low_bit(stored)) return dequantise_row(low, exact.values, type, p.head_dim, threadIdx.x % 32, 32);
  store_row(low.values, type, exact, type, static_cast<int>(p.head_dim));
}

// Heads are those of all layers.
__global__ void __launch_bounds__(kThreads) quantise_ring_kernel(const __grid_constant__ QuantiseRingParams p) {
  const WarpItem item(p.layers * p.kv_heads, p.count);
  if (!item.exists) return;
  const bool k = blockIdx.y == 0;
  const DType type = k ? p.k_type : p.v_type, stored = k ? p.stored_k_type : p.stored_v_type;
  const uint32_t position = static_cast<uint32_t>(p.first_position) + item.row;
  const uint32_t layer = item.head / static_cast<uint32_t>(p.kv_heads), head = item.head - layer * p.kv_heads;
  const int64_t from = (item.head * p.ring_rows + position % static_cast<uint32_t>(p.ring_rows)) * p.head_dim;
  const void* const plane = (k ? p.to_k : p.to_v)[layer];
  store_row(at(k ? p.ring_k : p.ring_v, from, type), type,
            plane_row(plane, stored, p.kv_heads, p.to_rows, p.head_dim, head, position - p.to_position), stored,
            static_cast<int>(p.head_dim));
}

Grid grid_of(int64_t rows) {
  CHECK(rows <= INT32_MAX, "rows=", rows);
  return {ceil_div(rows, kWarps), 2, kThreads};
}

}  // namespace

void quantise_rows(const RowsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "quantise_rows", grid_of(params.kv_heads * params.count), quantise_rows_kernel,
            params);
}

void dequantise_rows(const RowsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "dequantise_rows", grid_of(params.kv_heads * params.count), dequantise_rows_kernel,
            params);
}

void quantise_ring(const QuantiseRingParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "quantise_ring", grid_of(params.layers * params.kv_heads * params.count),
            quantise_ring_kernel, params);
}

}  // namespace headrace::kernels::cuda
