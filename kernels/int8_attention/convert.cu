// Rows of K and V in 8 bits, and the vector that is taken from K.
#include "kernels/cuda/launch.cuh"
#include "kernels/int8_attention/bodies.h"
#include "kernels/int8_attention/instances.cuh"
#include "kernels/int8_attention/rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32, kTile = static_cast<int>(kKv8Tile);

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

// A block: a tile of a KV head.
template <int kDim>
__global__ void __launch_bounds__(kThreads) convert_tile(const __grid_constant__ Int8KvParams params) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int tops[kDim];
  const int head = blockIdx.x, dim = static_cast<int>(params.head_dim), thread = threadIdx.x;
  const int first = static_cast<int>(params.first) + static_cast<int>(blockIdx.y) * kTile;
  const KvSegment& segment = segment_at(params.segments, params.segment_count, first);
  const int64_t from = row_index(segment, head, first) * dim;
  unsigned char* const out = reinterpret_cast<unsigned char*>(params.out.data) +
                             (int64_t{first / kTile} * params.kv_heads + head) * kv8_block_bytes(kDim);
  unsigned char* const values = shared + kTile * kDim;
  for (int i = thread; i < kDim; i += kThreads) tops[i] = 0;
  __syncthreads();

  // A thread has up to two halves of a channel's rows.
  constexpr int kParts = kThreads / kDim >= 2 ? 2 : 1, kRows = kTile / kParts;
  const int channel = thread % kDim, part = thread / kDim;
  const bool has_values = part < kParts;
  float v[kRows];
  if (has_values) {
    int top = 0;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = from + int64_t{part * kRows + i} * dim;
      v[i] = channel < dim ? load_one(segment.v, params.v_type, row + channel) : 0.0f;
      top = max(top, magnitude_bits(v[i]));
    }
    atomicMax(&tops[channel], top);
  }

  constexpr int kAtOnce = kDim == 256 ? 2 : 8;  // rows of K that a warp has in flight
  const int warp = thread / 32;
  WarpRow<kDim> centre;
  centre.load(params.centre, DType::kF32, int64_t{head} * dim, dim);
#pragma unroll 1
  for (int begin = warp * (kTile / kWarps); begin < (warp + 1) * (kTile / kWarps); begin += kAtOnce) {
    WarpRow<kDim> keys[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) keys[i].load(segment.k, params.k_type, from + int64_t{begin + i} * dim, dim);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < WarpRow<kDim>::kEach; ++j) keys[i].v[j] = __fsub_rn(keys[i].v[j], centre.v[j]);
      keys[i].rotate(dim & -dim);
      const RowQuant quant = keys[i].quant();
      keys[i].store(quant, [&](int d) { return shared + key_place<kDim>(begin + i, d); });
      if (thread % 32 == 0) reinterpret_cast<float*>(out + kv8_k_scales(kDim))[begin + i] = quant.scale;
    }
  }
  __syncthreads();

  if (has_values) {
    const RowQuant quant(__int_as_float(tops[channel]));
    if (part == 0) reinterpret_cast<float*>(out + kv8_v_scales(kDim))[channel] = quant.scale;
#pragma unroll
    for (int half = 0; half < kRows / 32; ++half) {
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const float* const rows = v + half * 32 + 2 * t;
        const float low[4] = {rows[0], rows[1], rows[8], rows[9]}, high[4] = {rows[16], rows[17], rows[24], rows[25]};
        *reinterpret_cast<uint2*>(values + value_place(part * (kRows / 32) + half, channel, t)) = {quant.word_of(low),
                                                                                                   quant.word_of(high)};
      }
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
               .threads = kThreads,
               .shared_bytes = 2 * kTile * kDim},
              convert_tile<kDim>, params);
  });
}

}  // namespace headrace::kernels::cuda
