// What is before and behind the recurrence. A warp has a head of one row or of several rows, and a lane four
// neighbouring elements of every 128 of it.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/cuda/with_type.cuh"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kWarps = kThreads / 32;
constexpr int kFours = static_cast<int>(kMaxDeltaDim) / 128;  // of a lane
static_assert(kMaxDeltaKeyDim <= 128, "a head with a norm is one four of each lane");

__device__ float silu(float x) { return __fdiv_rn(x, __fadd_rn(expf(-x), 1.0f)); }

// Four neighbouring elements. `wide`: they are aligned to their size.
template <typename T>
struct alignas(4 * sizeof(T)) FourOf {
  T of[4];
};
template <typename T>
__device__ float4 load_four(const T* from, bool wide) {
  if (!wide) return {widen(from[0]), widen(from[1]), widen(from[2]), widen(from[3])};
  const FourOf<T> four = *reinterpret_cast<const FourOf<T>*>(from);
  return {widen(four.of[0]), widen(four.of[1]), widen(four.of[2]), widen(four.of[3])};
}
template <typename T>
__device__ void store_four(T* to, const float4& x) {
  *reinterpret_cast<FourOf<T>*>(to) = {narrow<T>(x.x), narrow<T>(x.y), narrow<T>(x.z), narrow<T>(x.w)};
}
__device__ float4 operator*(const float4& x, float factor) {
  return {__fmul_rn(x.x, factor), __fmul_rn(x.y, factor), __fmul_rn(x.z, factor), __fmul_rn(x.w, factor)};
}
__device__ float add_squares(const float4& x, float sum) {
  return fmaf(x.w, x.w, fmaf(x.z, x.z, fmaf(x.y, x.y, fmaf(x.x, x.x, sum))));
}
bool fours_aligned(const void* pointer, DType type, int64_t stride) {
  return reinterpret_cast<uintptr_t>(pointer) % (4 * dtype_bytes(type)) == 0 && stride % 4 == 0;
}

// ---- delta_inputs ---------------------------------------------------------------------------------------------------

constexpr int kTokens = kDeltaConvRows + 1;  // of the convolution

// m of a row's channel, and of the three tokens before it, the oldest first.
template <typename T>
struct Earlier {
  const T* of[kTokens];

  // Row `row` of a chain, which may be before the call's first one.
  __device__ static const T* in_chain(const DeltaInputsParams& p, int64_t row) {
    return row < 0 ? static_cast<const T*>(p.conv) + (kDeltaConvRows + row) * channels(p.shape)
                   : static_cast<const T*>(p.in) + row * p.in_stride;
  }
  __device__ Earlier(const DeltaInputsParams& p, int64_t row) {
    const int64_t first = p.path.first == nullptr ? 0 : *p.path.first;
    const int32_t* const path = p.path.path + row * p.path.path_stride;
    const int64_t last = p.path.positions[row] - *p.path.committed;
    device_check(last >= 0 && last < p.path.path_stride && path[last] == first + row && first + row < p.pass_rows);
#pragma unroll
    for (int u = 0; u < kTokens; ++u) {
      const int64_t j = last - kDeltaConvRows + u;
      const int64_t pass_row = j < 0 ? 0 : path[j];
      of[u] = j < 0               ? in_chain(p, j)
              : pass_row >= first ? in_chain(p, pass_row - first)
                                  : static_cast<const T*>(p.stored.m) + pass_row * channels(p.shape);
    }
  }
};

// A head of q, k or v: its channels, and where they go.
struct Head {
  int64_t channel, dim;
  float* out;  // of row 0; rows are `width` elements apart
  int64_t width;
  bool stored;  // rows are pass rows
  bool normed;
  float scale;
};
__device__ Head head_of(const DeltaInputsParams& p, int64_t unit) {
  const DeltaShape& shape = p.shape;
  const int64_t width = k_width(shape);
  if (unit < shape.k_heads) {
    const int64_t at_head = unit * shape.k_dim;
    return {at_head,
            shape.k_dim,
            p.q + at_head,
            width,
            false,
            true,
            __fdiv_rn(1.0f, sqrtf(static_cast<float>(shape.k_dim)))};
  }
  if (unit < 2 * shape.k_heads) {
    const int64_t at_head = (unit - shape.k_heads) * shape.k_dim;
    return {width + at_head, shape.k_dim, p.stored.k + at_head, width, true, true, 1.0f};
  }
  const int64_t at_head = (unit - 2 * shape.k_heads) * shape.v_dim;
  return {2 * width + at_head, shape.v_dim, p.v + at_head, v_width(shape), false, false, 1.0f};
}

__device__ void gates_of(const DeltaInputsParams& p, int64_t row, int64_t pass_row, int64_t head) {
  const int64_t b = row * p.in_stride + channels(p.shape) + v_width(p.shape) + head;
  const float beta = __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-load_one(p.type, p.in, b))));
  const float a = __fadd_rn(load_one(p.type, p.in, b + p.shape.v_heads), p.dt_bias[head]);
  p.beta[row * p.shape.v_heads + head] = beta;
  p.stored.g[pass_row * p.shape.v_heads + head] = __fmul_rn(p.decay[head], a > 20.0f ? a : log1pf(expf(a)));
}

// The convolution of a lane's four channels.
struct Channels {
  float4 weight[4];  // of a channel

  __device__ explicit Channels(const float* weights) {
#pragma unroll
    for (int i = 0; i < 4; ++i) weight[i] = reinterpret_cast<const float4*>(weights)[i];
  }
  static __device__ float one(const float4& weight, float m0, float m1, float m2, float m3) {
    return silu(fmaf(weight.w, m3, fmaf(weight.z, m2, fmaf(weight.y, m1, __fmul_rn(weight.x, m0)))));
  }
  __device__ float4 convolve(const float4 (&m)[kTokens]) const {
    return {one(weight[0], m[0].x, m[1].x, m[2].x, m[3].x), one(weight[1], m[0].y, m[1].y, m[2].y, m[3].y),
            one(weight[2], m[0].z, m[1].z, m[2].z, m[3].z), one(weight[3], m[0].w, m[1].w, m[2].w, m[3].w)};
  }
};

__device__ float4 normed(const Head& head, const float4& x) {
  return x * __fdiv_rn(head.scale, sqrtf(__fadd_rn(warp_sum(add_squares(x, 0.0f)), 1e-6f)));
}

// A warp's rows in a chain.
constexpr int kRun = 16;

// Grid: rows, or runs of a chain's, x blocks of heads: q, then k, then v.
template <typename T, bool kChain>
__global__ void __launch_bounds__(kThreads) delta_inputs_kernel(DeltaInputsParams p, bool wide) {
  const int64_t unit = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32;
  if (unit >= 2 * p.shape.k_heads + p.shape.v_heads) return;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * (kChain ? kRun : 1);
  const int64_t end = kChain ? min(first + kRun, p.rows) : first + 1;
  const int64_t ahead = kChain || p.path.first == nullptr ? 0 : *p.path.first;  // pass rows before the call's
  const Head head = head_of(p, unit);
  const bool gates = unit >= 2 * p.shape.k_heads && first + lane < end;
  if (gates) gates_of(p, first + lane, ahead + first + lane, unit - 2 * p.shape.k_heads);
#pragma unroll 1
  for (int64_t dim = 4 * lane; dim < (head.dim + 127) / 128 * 128; dim += 128) {
    const bool there = dim < head.dim;  // all lanes take part in sums
    const int64_t channel = head.channel + (there ? dim : 0);
    const Channels of(p.conv_weight + channel * kTokens);
    float4 m[kTokens];
    if constexpr (kChain) {
#pragma unroll
      for (int u = 0; u < kDeltaConvRows; ++u) {
        m[u] = load_four(Earlier<T>::in_chain(p, first + u - kDeltaConvRows) + channel, wide);
      }
    } else {
      const Earlier<T> earlier(p, first);
#pragma unroll
      for (int u = 0; u < kDeltaConvRows; ++u) m[u] = load_four(earlier.of[u] + channel, wide);
    }
#pragma unroll(kChain ? 2 : 1)
    for (int64_t row = first; row < end; ++row) {
      m[kDeltaConvRows] = load_four(Earlier<T>::in_chain(p, row) + channel, wide);
      float4 x = of.convolve(m);
      if (!there) x = {0.0f, 0.0f, 0.0f, 0.0f};
      if (head.normed) x = normed(head, x);
      if (there) store_four(head.out + (head.stored ? ahead + row : row) * head.width + dim, x);
      if (there && p.stored.m != nullptr) {
        store_four(static_cast<T*>(p.stored.m) + (ahead + row) * channels(p.shape) + channel, m[kDeltaConvRows]);
      }
#pragma unroll
      for (int u = 0; u < kDeltaConvRows; ++u) m[u] = m[u + 1];
    }
  }
}

// ---- delta_output ---------------------------------------------------------------------------------------------------

// Grid: rows x blocks of heads.
template <typename T, typename Z>
__global__ void __launch_bounds__(kThreads) delta_output_kernel(DeltaOutputParams p, bool wide) {
  const int64_t head = static_cast<int64_t>(blockIdx.y) * kWarps + threadIdx.x / 32, row = blockIdx.x;
  if (head >= p.shape.v_heads) return;
  const int64_t dim = p.shape.v_dim, first = (row * p.shape.v_heads + head) * dim;
  const int lane = static_cast<int>(threadIdx.x % 32);
  float4 values[kFours], z[kFours];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int64_t at_dim = 4 * lane + 128 * i;
    values[i] = z[i] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (at_dim >= dim) continue;
    values[i] = *reinterpret_cast<const float4*>(p.o + first + at_dim);
    z[i] = load_four(static_cast<const Z*>(p.z) + row * p.z_stride + head * dim + at_dim, wide);
    squares = add_squares(values[i], squares);
  }
  const float mean = __fdiv_rn(warp_sum(squares), static_cast<float>(dim));
  const float scale = __fdiv_rn(1.0f, sqrtf(__fadd_rn(mean, p.eps)));
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    const int64_t at_dim = 4 * lane + 128 * i;
    if (at_dim >= dim) continue;
    const float4 weight = {p.weight[at_dim], p.weight[at_dim + 1], p.weight[at_dim + 2], p.weight[at_dim + 3]};
    const float4 x = values[i] * scale;
    store_four(
        static_cast<T*>(p.out) + first + at_dim,
        float4{__fmul_rn(__fmul_rn(x.x, weight.x), silu(z[i].x)), __fmul_rn(__fmul_rn(x.y, weight.y), silu(z[i].y)),
               __fmul_rn(__fmul_rn(x.z, weight.z), silu(z[i].z)), __fmul_rn(__fmul_rn(x.w, weight.w), silu(z[i].w))});
  }
}

}  // namespace

void delta_inputs(const DeltaInputsParams& params, Stream& stream) {
  const int64_t heads = 2 * params.shape.k_heads + params.shape.v_heads;
  const bool wide = fours_aligned(params.in, params.type, params.in_stride);
  const bool chain = params.path.path == nullptr;
  const Grid grid = {chain ? ceil_div(params.rows, int64_t{kRun}) : params.rows, ceil_div(heads, kWarps), kThreads};
  with_type(params.type, [&](auto type) {
    using T = decltype(type);
    launch_on(cuda_stream(stream), "delta_inputs", grid,
              chain ? delta_inputs_kernel<T, true> : delta_inputs_kernel<T, false>, params, wide);
  });
}

void delta_output(const DeltaOutputParams& params, Stream& stream) {
  const bool wide = fours_aligned(params.z, params.z_type, params.z_stride);
  const Grid grid = {params.rows, ceil_div(params.shape.v_heads, kWarps), kThreads};
  with_type(params.type, [&](auto type) {
    with_type(params.z_type, [&](auto z_type) {
      launch_on(cuda_stream(stream), "delta_output", grid, delta_output_kernel<decltype(type), decltype(z_type)>,
                params, wide);
    });
  });
}

}  // namespace headrace::kernels::cuda
