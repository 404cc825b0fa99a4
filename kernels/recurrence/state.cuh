// A warp's part of a value head's state, and one token's step on it. The warp has eight columns, and a lane has kRows
// of a column's k_dim rows in registers: lane = 8 part + column, rows [part kRows, (part + 1) kRows), of which those
// beyond k_dim are zero. A sum over k_dim is four chains a lane, added by neighbours, then lanes by their part. Device
// code.
#pragma once

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

constexpr int kWarpColumns = 8, kWarpParts = 32 / kWarpColumns;

// The kernels' work is a list of warps: all column groups of all heads (of all layers).
struct WarpPlace {
  int64_t head, column;  // of the lane; a head of a layer behind the first is beyond v_heads
  int part;
};
__device__ inline WarpPlace warp_place(const DeltaShape& shape) {
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / 32;
  const int64_t groups = shape.v_dim / kWarpColumns;
  const int lane = static_cast<int>(threadIdx.x % 32);
  return {warp / groups, warp % groups * kWarpColumns + lane % kWarpColumns, lane / kWarpColumns};
}

__device__ inline float sum_of_parts(const float (&chain)[4]) {
  float sum = __fadd_rn(__fadd_rn(chain[0], chain[1]), __fadd_rn(chain[2], chain[3]));
  sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, kWarpColumns));
  return __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, 2 * kWarpColumns));
}

// The lane's part of a vector over k_dim, which is aligned to 16 bytes.
template <int kRows>
__device__ inline void load_part(const float* vector, int part, int64_t k_dim, float (&values)[kRows]) {
#pragma unroll
  for (int i = 0; i < kRows; i += 4) {
    const int row = part * kRows + i;
    const float4 four = row < k_dim ? *reinterpret_cast<const float4*>(vector + row) : float4{0.0f, 0.0f, 0.0f, 0.0f};
    values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
  }
}

// A token that is computed, loaded ahead of its step.
template <int kRows>
struct Token {
  float k[kRows], q[kRows], v, beta, g;

  struct From {
    const float *q, *k;  // [k_dim]
    const float *v, *beta, *g;
  };
  __device__ void load(const From& from, int part, int64_t k_dim) {
    load_part(from.k, part, k_dim, k);
    load_part(from.q, part, k_dim, q);
    v = *from.v, beta = *from.beta, g = *from.g;
  }
};

template <int kRows>
struct WarpState {
  float s[kRows];

  // `head_state`: [k_dim, v_dim].
  __device__ void load(const DeltaShape& shape, const float* head_state, const WarpPlace& place) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = place.part * kRows + i;
      s[i] = row < shape.k_dim ? head_state[row * shape.v_dim + place.column] : 0.0f;
    }
  }
  __device__ void store(const DeltaShape& shape, float* head_state, const WarpPlace& place) const {
    asm("" : "+l"(head_state));  // so that no registers hold load()'s addresses until now
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = place.part * kRows + i;
      if (row < shape.k_dim) head_state[row * shape.v_dim + place.column] = s[i];
    }
  }

  // S = alpha S + k d^T.
  __device__ void replay(float alpha, const float (&k)[kRows], float d) {
#pragma unroll
    for (int i = 0; i < kRows; ++i) s[i] = fmaf(k[i], d, __fmul_rn(s[i], alpha));
  }

  struct Stepped {
    float d, o;
  };
  __device__ Stepped step(const Token<kRows>& token) {
    float seen[4] = {}, o[4] = {};
    const float alpha = expf(token.g);
#pragma unroll
    for (int i = 0; i < kRows; ++i) seen[i % 4] = fmaf(__fmul_rn(s[i], alpha), token.k[i], seen[i % 4]);
    const float d = __fmul_rn(token.beta, __fsub_rn(token.v, sum_of_parts(seen)));
    replay(alpha, token.k, d);
#pragma unroll
    for (int i = 0; i < kRows; ++i) o[i % 4] = fmaf(s[i], token.q[i], o[i % 4]);
    return {d, sum_of_parts(o)};
  }
};

// A stored token, on its way to a replay.
template <int kRows>
struct StoredToken {
  float k[kRows], d, g;

  // `head`: of values, in its layer.
  __device__ void load(const DeltaShape& shape, const DeltaRows& rows, int64_t row, int64_t head,
                       const WarpPlace& place) {
    load_part(rows.k + (row * shape.k_heads + key_head(shape, head)) * shape.k_dim, place.part, shape.k_dim, k);
    d = rows.d[(row * shape.v_heads + head) * shape.v_dim + place.column];
    g = rows.g[row * shape.v_heads + head];
  }
};

// Replays `count` tokens, row_of(i) being the pass row of the i-th. kAhead: the next one is loaded beside the work on
// one.
template <bool kAhead, int kRows, typename RowOf>
__device__ inline void replay_rows(WarpState<kRows>& state, const DeltaShape& shape, const DeltaRows& rows,
                                   int64_t head, const WarpPlace& place, int64_t count, const RowOf& row_of) {
  StoredToken<kRows> next;
  if (kAhead && count > 0) next.load(shape, rows, row_of(0), head, place);
#pragma unroll 1
  for (int64_t i = 0; i < count; ++i) {
    if (!kAhead) next.load(shape, rows, row_of(i), head, place);
    const StoredToken<kRows> token = next;
    if (kAhead && i + 1 < count) next.load(shape, rows, row_of(i + 1), head, place);
    state.replay(expf(token.g), token.k, token.d);
  }
}

}  // namespace headrace::kernels::cuda
