// What is before and behind the recurrence. A warp has one head of one row, a lane every 32nd element of it.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kMost = kMaxDeltaDim / 32;  // elements of a lane

__device__ float silu(float x) { return __fdiv_rn(x, __fadd_rn(expf(-x), 1.0f)); }

// ---- delta_inputs ---------------------------------------------------------------------------------------------------

// m of the token and the three before it, the oldest first: a base and the element of channel 0.
struct Earlier {
  const void* base[kDeltaConvRows + 1];
  int64_t first[kDeltaConvRows + 1];
};

__device__ Earlier earlier_of(const DeltaInputsParams& p, int64_t row) {
  const int64_t width = channels(p.shape);
  const bool chain = p.path.path == nullptr;
  const int64_t first = chain || p.path.first == nullptr ? 0 : *p.path.first;
  const int32_t* const path = chain ? nullptr : p.path.path + row * p.path.path_stride;
  const int64_t last = chain ? row : p.path.positions[row] - *p.path.committed;
  device_check(chain ||
               (last >= 0 && last < p.path.path_stride && path[last] == first + row && first + row < p.pass_rows));
  Earlier earlier;
#pragma unroll
  for (int u = 0; u <= kDeltaConvRows; ++u) {
    const int64_t j = last - kDeltaConvRows + u;
    if (j < 0) {
      earlier.base[u] = p.conv;
      earlier.first[u] = (kDeltaConvRows + j) * width;
      continue;
    }
    const int64_t pass_row = chain ? j : path[j];
    const bool own_call = pass_row >= first;
    earlier.base[u] = own_call ? p.in : p.stored.m;
    earlier.first[u] = own_call ? (pass_row - first) * p.in_stride : pass_row * width;
  }
  return earlier;
}

// A head of q, k or v: its channels, and where they go.
struct Head {
  int64_t channel, dim;
  float* out;
  bool normed;
  float scale;
};
__device__ Head head_of(const DeltaInputsParams& p, int64_t row, int64_t pass_row, int64_t unit) {
  const DeltaShape& shape = p.shape;
  const int64_t width = k_width(shape);
  if (unit < shape.k_heads) {
    const int64_t at_head = unit * shape.k_dim;
    return {at_head, shape.k_dim, p.q + row * width + at_head, true,
            __fdiv_rn(1.0f, sqrtf(static_cast<float>(shape.k_dim)))};
  }
  if (unit < 2 * shape.k_heads) {
    const int64_t at_head = (unit - shape.k_heads) * shape.k_dim;
    return {width + at_head, shape.k_dim, p.stored.k + pass_row * width + at_head, true, 1.0f};
  }
  const int64_t at_head = (unit - 2 * shape.k_heads) * shape.v_dim;
  return {2 * width + at_head, shape.v_dim, p.v + row * v_width(shape) + at_head, false, 1.0f};
}

__device__ void gates_of(const DeltaInputsParams& p, int64_t row, int64_t pass_row, int64_t head) {
  const int64_t b = row * p.in_stride + channels(p.shape) + v_width(p.shape) + head;
  const float beta = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-load_one(p.type, p.in, b))));
  const float a = __fadd_rn(load_one(p.type, p.in, b + p.shape.v_heads), p.dt_bias[head]);
  p.beta[row * p.shape.v_heads + head] = beta;
  p.stored.g[pass_row * p.shape.v_heads + head] = __fmul_rn(p.decay[head], a > 20.0f ? a : log1pf(expf(a)));
}

// Grid: rows x blocks of heads: q, then k, then v.
__global__ void __launch_bounds__(kThreads) delta_inputs_kernel(DeltaInputsParams p) {
  const int64_t unit = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32, row = blockIdx.x;
  if (unit >= 2 * p.shape.k_heads + p.shape.v_heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t pass_row = row + (p.path.path != nullptr && p.path.first != nullptr ? *p.path.first : 0);
  const Earlier earlier = earlier_of(p, row);
  const Head head = head_of(p, row, pass_row, unit);
  float values[kMost], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t at_dim = lane + 32 * i, channel = head.channel + at_dim;
    values[i] = 0.0f;
    if (at_dim >= head.dim) continue;
    float sum = 0.0f, m = 0.0f;
#pragma unroll
    for (int u = 0; u <= kDeltaConvRows; ++u) {
      m = load_one(p.type, earlier.base[u], earlier.first[u] + channel);
      sum = fmaf(p.conv_weight[channel * (kDeltaConvRows + 1) + u], m, sum);
    }
    if (p.stored.m != nullptr) store_one(p.type, p.stored.m, pass_row * channels(p.shape) + channel, m);
    values[i] = silu(sum);
    squares = fmaf(values[i], values[i], squares);
  }
  if (head.normed) {
    const float factor = __fdiv_rn(head.scale, sqrtf(__fadd_rn(warp_sum(squares), 1e-6f)));
#pragma unroll
    for (int i = 0; i < kMost; ++i) values[i] = __fmul_rn(values[i], factor);
  } else if (lane == 0) {
    gates_of(p, row, pass_row, unit - 2 * p.shape.k_heads);
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t at_dim = lane + 32 * i;
    if (at_dim < head.dim) head.out[at_dim] = values[i];
  }
}

// ---- delta_output ---------------------------------------------------------------------------------------------------

// Grid: rows x blocks of heads.
__global__ void __launch_bounds__(kThreads) delta_output_kernel(DeltaOutputParams p) {
  const int64_t head = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32, row = blockIdx.x;
  if (head >= p.shape.v_heads) return;
  const int64_t dim = p.shape.v_dim, first = (row * p.shape.v_heads + head) * dim;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float values[kMost], squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t at_dim = lane + 32 * i;
    values[i] = at_dim < dim ? p.o[first + at_dim] : 0.0f;
    squares = fmaf(values[i], values[i], squares);
  }
  const float mean = __fdiv_rn(warp_sum(squares), static_cast<float>(dim));
  const float scale = __fdiv_rn(1.0f, sqrtf(__fadd_rn(mean, p.eps)));
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int64_t at_dim = lane + 32 * i;
    if (at_dim >= dim) continue;
    const float z = load_one(p.z_type, p.z, row * p.z_stride + head * dim + at_dim);
    const float normed = __fmul_rn(__fmul_rn(values[i], scale), p.weight[at_dim]);
    store_one(p.type, p.out, first + at_dim, __fmul_rn(normed, silu(z)));
  }
}

}  // namespace

void delta_inputs(const DeltaInputsParams& params, Stream& stream) {
  const int64_t heads = 2 * params.shape.k_heads + params.shape.v_heads;
  launch_on(cuda_stream(stream), "delta_inputs", {params.rows, ceil_div(heads, kWarps), kThreads}, delta_inputs_kernel,
            params);
}

void delta_output(const DeltaOutputParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "delta_output", {params.rows, ceil_div(params.shape.v_heads, kWarps), kThreads},
            delta_output_kernel, params);
}

}  // namespace headrace::kernels::cuda
