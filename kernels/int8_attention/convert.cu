// Rows of K and V in 8 bits, and the vector that is taken from K.
#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/int8_attention/bodies.h"
#include "kernels/int8_attention/instances.cuh"
#include "kernels/int8_attention/rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kTile = static_cast<int>(kKv8Tile);

// Calls `body` with the type as a constant, so that the loads of a loop can all be under way.
template <typename Body>
__device__ void with_constant(DType type, const Body& body) {
  switch (type) {
    case DType::kF32:
      return body(std::integral_constant<DType, DType::kF32>());
    case DType::kF16:
      return body(std::integral_constant<DType, DType::kF16>());
    default:
      return body(std::integral_constant<DType, DType::kBF16>());
  }
}

// A block: a KV head; a thread: a channel.
__global__ void __launch_bounds__(256) centre_of_keys(const __grid_constant__ Int8CentreParams params) {
  const int head = blockIdx.x, channel = threadIdx.x, dim = static_cast<int>(params.head_dim);
  if (channel >= dim) return;
  float sum = 0.0f;
#pragma unroll 1
  for (int tile = 0; tile < kInt8CentreRows; tile += kTile) {
    const KvSegment& segment = segment_at(params.segments, params.segment_count, tile);
    const int64_t from = row_index(segment, head, tile) * dim + channel;
#pragma unroll 16
    for (int row = 0; row < kTile; ++row) sum = __fadd_rn(sum, load_one(segment.k, params.k_type, from + row * dim));
  }
  params.centre[head * dim + channel] = __fmul_rn(sum, 1.0f / kInt8CentreRows);
}

// Where element `d` of row `row` of K is; the next three follow if d is a multiple of 4.
template <int kDim>
__device__ int key_place(int row, int d) {
  const int in = row % 16, e = d % 32;
  return (row / 16 * (kDim / 32) + d / 32) * 512 + (in % 8 * 4 + e % 16 / 4) * 16 + in / 8 * 8 + e / 16 * 4 + e % 4;
}
// Where of 32 rows of V, from `half` * 32 on, the eight of channel `c` are that a lane with t has: rows 8 j + 2 t and
// 8 j + 2 t + 1.
__device__ inline int value_place(int half, int c, int t) {
  return (c / 16 * 2 + half) * 512 + (c % 8 * 4 + t) * 16 + c % 16 / 8 * 8;
}

__device__ inline void store_key_scale(unsigned char* scales, int row, float scale) {
  const float kept = __int_as_float(__float_as_int(scale) & ~3);
  reinterpret_cast<float2*>(scales)[row] = {kept, __fmul_rn(kept, -kKv8SumsStart)};
}

template <int kDim>
constexpr int kConvertThreads = 2 * kDim;

// A block: a tile of a KV head. A warp has some rows of K. A thread has two channels of V, and of these what the lanes
// with one t have.
template <int kDim>
__global__ void __launch_bounds__(kConvertThreads<kDim>) convert_tile(const __grid_constant__ Int8KvParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int tops[kDim];
  constexpr int kThreads = kConvertThreads<kDim>, kWarps = kThreads / 32;
  const int head = blockIdx.x, dim = static_cast<int>(params.head_dim), thread = threadIdx.x;
  const int first = static_cast<int>(params.first) + static_cast<int>(blockIdx.y) * kTile;
  const KvSegment& segment = segment_at(params.segments, params.segment_count, first);
  const int64_t from = row_index(segment, head, first) * dim;
  unsigned char* const out = reinterpret_cast<unsigned char*>(params.out.data) +
                             (int64_t{first / kTile} * params.kv_heads + head) * kv8_block_bytes(kDim);
  unsigned char* const values = shared + kTile * kDim;
  if (thread < kDim) tops[thread] = 0;
  __syncthreads();

  const int channel = thread % (kDim / 2) * 2, t = thread / (kDim / 2);
  float v[2][kTile / 4];  // row 8 j + 2 t + i of 32 rows is at 2 j + i of 8
  with_constant(params.v_type, [&](auto type) {
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) {
      const int row = i / 8 * 32 + i % 8 / 2 * 8 + 2 * t + i % 2;
      const float2 pair = channel < dim
                              ? load_pair(segment.v, decltype(type)::value, from + int64_t{row} * dim + channel)
                              : float2{0.0f, 0.0f};
      v[0][i] = pair.x;
      v[1][i] = pair.y;
    }
  });

  constexpr int kAtOnce = 64 / kWarps;  // rows of K of a warp
  WarpRow<kDim> keys[kAtOnce], centre;
  with_constant(params.k_type, [&](auto type) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      keys[i].load(segment.k, decltype(type)::value, from + int64_t{thread / 32 * kAtOnce + i} * dim, dim);
    }
  });
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    int top = 0;
#pragma unroll
    for (int i = 0; i < kTile / 4; ++i) top = max(top, magnitude_bits(v[c][i]));
    atomicMax(&tops[channel + c], top);
  }

  centre.load(params.centre, DType::kF32, int64_t{head} * dim, dim);
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) {
    const int row = thread / 32 * kAtOnce + i;
#pragma unroll
    for (int j = 0; j < WarpRow<kDim>::kEach; ++j) keys[i].v[j] = __fsub_rn(keys[i].v[j], centre.v[j]);
    keys[i].rotate(dim & -dim);
    const RowQuant quant = keys[i].quant();
    keys[i].store(quant, [&](int d) { return shared + key_place<kDim>(row, d); });
    if (thread % 32 == 0) store_key_scale(out + kv8_k_scales(kDim), row, quant.scale);
  }
  __syncthreads();

#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const RowQuant quant(__int_as_float(tops[channel + c]));
    if (t == 0) reinterpret_cast<float*>(out + kv8_v_scales(kDim))[channel + c] = quant.scale;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<uint2*>(values + value_place(half, channel + c, t)) = {quant.word_of(v[c] + half * 8),
                                                                               quant.word_of(v[c] + half * 8 + 4)};
    }
  }
  __syncthreads();
  for (int i = thread; i < 2 * kTile * kDim / 16; i += kThreads) {
    reinterpret_cast<uint4*>(out)[i] = reinterpret_cast<const uint4*>(shared)[i];
  }
}

}  // namespace

void int8_centre(const Int8CentreParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "centre_of_keys", {.x = params.kv_heads, .threads = 256}, centre_of_keys, params);
}

void int8_kv(const Int8KvParams& params, Stream& stream) {
  const_dim(params.head_dim, [&](auto size) {
    constexpr int kDim = size.value;
    launch_on(cuda_stream(stream), "convert_tile",
              {.x = params.kv_heads,
               .y = (params.end - params.first) / kTile,
               .threads = kConvertThreads<kDim>,
               .shared_bytes = 2 * kTile * kDim},
              convert_tile<kDim>, params);
  });
}

}  // namespace headrace::kernels::cuda
