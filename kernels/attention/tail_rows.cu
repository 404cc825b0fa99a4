// The tail of decode attention in fp32 and without tensor cores: for every element type and head_dim up to 512.
#include "kernels/attention/bodies.h"
#include "kernels/attention/launch.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/cuda/warp.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMaxRows = kTailWindow + kPrefixTile;  // of a tail
// Scores: a warp has 8 lanes per row, with 8 elements each at a time, and kScoreRows rows. Values: 32 lanes per row,
// with 4 elements each, and kValueRows rows in flight.
constexpr int kRowLanes = 8, kScoreDims = 8, kScoreRows = 2 * 32 / kRowLanes;
constexpr int kValueDims = 4, kValueRows = 6;
constexpr int kColumns = 256;  // of o, summed at once
static_assert(kMaxRows % 32 == 0 && kRowsHeads == 4);

// Loads kCount elements, 0 where there are none.
template <int kCount>
__device__ void load_elements(const void* row, DType type, int d, int dim, float (&to)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    const float2 two = d + i < dim ? load_pair(row, type, d + i) : float2{};
    to[i] = two.x;
    to[i + 1] = two.y;
  }
}

struct TailShared {
  float4 s[kMaxRows];  // scores, then weights, of the heads
  RowPlace place[kMaxRows];
  float m[kRowsHeads], l[kRowsHeads];
  alignas(16) float q[1];  // [kRowsHeads, padded(dim)], see place_of_q; behind it a slice of o for each warp
};
__host__ __device__ constexpr int padded(int dim) { return (dim + 63) / 64 * 64; }
__host__ __device__ constexpr int tail_shared_floats(int dim) {  // of q, and of the slices
  return kRowsHeads * padded(dim) + kWarps * kRowsHeads * (dim < kColumns ? dim : kColumns);
}
int tail_shared_bytes(int64_t dim) {
  static_assert(sizeof(TailShared) + tail_shared_floats(kRowsDim) * sizeof(float) <= 99 * 1024);
  return static_cast<int>(sizeof(TailShared)) + tail_shared_floats(static_cast<int>(dim)) * 4;
}

// The place of an element of q: the lanes of a row read 4 of their 8 elements at a time, without bank conflicts.
__device__ inline int place_of_q(int d) { return d / 64 * 64 + d % 8 / 4 * 32 + d % 64 / 8 * 4 + d % 4; }

// Half of the lanes keep the upper half of the values, the others the lower; each adds what the other sends.
template <int kHalf>
__device__ void halve(float (&values)[kRowLanes]) {
  const uint32_t upper = threadIdx.x & kHalf ? ~0u : 0u;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const uint32_t low = __float_as_uint(values[i]), high = __float_as_uint(values[i + kHalf]);
    const uint32_t swap = (low ^ high) & upper;
    const float keep = __uint_as_float(low ^ swap), send = __uint_as_float(high ^ swap);
    values[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, send, kHalf));
  }
}

// Scores of rows [0, count).
__device__ void score_rows(TailShared& shared, const AttentionShape& shape, int count) {
  const int lane = threadIdx.x % 32, dim = static_cast<int>(shape.head_dim);
  const int row_lane = lane % kRowLanes, row = lane / kRowLanes;
  for (int first = threadIdx.x / 32 * kScoreRows; first < count; first += kWarps * kScoreRows) {
    const void* const rows[2] = {shared.place[min(first + row, count - 1)].k,
                                 shared.place[min(first + row + 4, count - 1)].k};
    float sums[kRowLanes] = {};  // [2][kRowsHeads]
    for (int d = row_lane * kScoreDims; d < dim; d += kRowLanes * kScoreDims) {
      float k[2][kScoreDims];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_elements(rows[i], shape.k_type, d, dim, k[i]);
#pragma unroll
      for (int h = 0; h < kRowsHeads; ++h) {
#pragma unroll
        for (int part = 0; part < kScoreDims; part += 4) {
          const float4 q = *reinterpret_cast<const float4*>(shared.q + h * padded(dim) + place_of_q(d + part));
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            float& sum = sums[i * kRowsHeads + h];
            sum = __fmaf_rn(q.x, k[i][part], sum);
            sum = __fmaf_rn(q.y, k[i][part + 1], sum);
            sum = __fmaf_rn(q.z, k[i][part + 2], sum);
            sum = __fmaf_rn(q.w, k[i][part + 3], sum);
          }
        }
      }
    }
    __syncwarp();
    halve<4>(sums);
    halve<2>(sums);
    halve<1>(sums);  // each lane now has the sum with the lane's number in its row
    const int scored = first + row + row_lane / kRowsHeads * 4;
    if (scored < count) {
      reinterpret_cast<float*>(&shared.s[scored])[row_lane % kRowsHeads] = __fmul_rn(sums[0], shape.scale);
    }
  }
}

// A head's weights, by a warp.
__device__ void weigh_rows(TailShared& shared, int h, int count) {
  const int lane = threadIdx.x % 32;
  float weights[kMaxRows / 32], top = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMaxRows / 32; ++i) {
    const int row = i * 32 + lane;
    weights[i] = row < count ? reinterpret_cast<const float*>(&shared.s[row])[h] : -INFINITY;
    top = fmaxf(top, weights[i]);
  }
  top = warp_max(top);
#pragma unroll
  for (int i = 0; i < kMaxRows / 32; ++i) {
    const int row = i * 32 + lane;
    weights[i] = weight_of(__fsub_rn(weights[i], top));  // top is never -inf: a query sees at least itself
    sum = __fadd_rn(sum, weights[i]);
    if (row < count) reinterpret_cast<float*>(&shared.s[row])[h] = weights[i];
  }
  sum = warp_sum(sum);
  if (lane == 0) {
    shared.m[h] = top;
    shared.l[h] = sum;
  }
}

// A warp's slice of `columns` of o from `first` on: every kWarps-th row, in order. slices: [kWarps, kRowsHeads,
// columns]
__device__ void add_rows(TailShared& shared, const AttentionShape& shape, int count, int first_column, int columns,
                         float* slices) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = first_column + columns;
  for (int d = first_column + lane * kValueDims; d < dim; d += 32 * kValueDims) {
    float o[kRowsHeads][kValueDims] = {};
    for (int first = warp; first < count; first += kWarps * kValueRows) {
      float v[kValueRows][kValueDims];
#pragma unroll
      for (int i = 0; i < kValueRows; ++i) {
        load_elements(shared.place[min(first + i * kWarps, count - 1)].v, shape.v_type, d, dim, v[i]);
      }
#pragma unroll
      for (int i = 0; i < kValueRows; ++i) {
        const int row = first + i * kWarps;
        if (row >= count) break;
        const float4 weight = shared.s[row];
        const float weights[kRowsHeads] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int h = 0; h < kRowsHeads; ++h) {
#pragma unroll
          for (int j = 0; j < kValueDims; ++j) o[h][j] = __fmaf_rn(weights[h], v[i][j], o[h][j]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kRowsHeads; ++h) {
      float* const to = slices + (warp * kRowsHeads + h) * columns + d - first_column;
#pragma unroll
      for (int j = 0; j < kValueDims; ++j) {
        if (d + j < dim) to[j] = o[h][j];
      }
    }
  }
}

// A block: one query, up to kRowsHeads heads of a KV head. Nothing here depends on other queries; rows are cut by their
// distance from the first one, and so by their positions.
__global__ void __launch_bounds__(kThreads, 2) walk_tail(const __grid_constant__ TailAttentionParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  TailShared& shared = *reinterpret_cast<TailShared*>(memory);
  const AttentionShape& shape = params.shape;
  const int query = blockIdx.x, dim = static_cast<int>(shape.head_dim);
  float* const slices = shared.q + kRowsHeads * padded(dim);
  const int group = static_cast<int>(shape.heads / shape.kv_heads), chunks = (group + kRowsHeads - 1) / kRowsHeads;
  const int kv_head = blockIdx.y / chunks, chunk_head = blockIdx.y % chunks * kRowsHeads;
  const int head = kv_head * group + chunk_head, heads = min(kRowsHeads, group - chunk_head);
  const int t = params.positions[query], committed = *params.committed;
  const int begin = max(first_seen_of(shape, t), max(tail_begin_of(t), params.first != nullptr ? *params.first : 0));
  const int count = t + 1 - begin;

  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int p = begin + i;
    const bool in_ring = p < committed;
    const int64_t row = in_ring ? kv_head * params.ring_rows + p % static_cast<int>(params.ring_rows)
                                : params.path[query * params.path_stride + p - committed] * shape.kv_heads + kv_head;
    shared.place[i] = {at(in_ring ? params.ring_k : params.pass_k, shape.k_type, row * dim),
                       at(in_ring ? params.ring_v : params.pass_v, shape.v_type, row * dim)};
  }
  for (int i = threadIdx.x; i < kRowsHeads * padded(dim); i += kThreads) {
    const int h = i / padded(dim), d = i % padded(dim);
    const int64_t index = query * shape.q_stride + int64_t{head + h} * dim + d;
    shared.q[h * padded(dim) + place_of_q(d)] = h < heads && d < dim ? load_one(params.q, shape.type, index) : 0.0f;
  }
  __syncthreads();
  score_rows(shared, shape, count);
  __syncthreads();
  if (threadIdx.x / 32 < kRowsHeads) weigh_rows(shared, threadIdx.x / 32, count);
  __syncthreads();
  for (int first = 0; first < dim; first += kColumns) {
    const int columns = min(kColumns, dim - first);
    if (first > 0) __syncthreads();  // all threads have finished with the slices
    add_rows(shared, shape, count, first, columns, slices);
    __syncthreads();
    for (int i = threadIdx.x; i < heads * columns; i += kThreads) {
      const int h = i / columns, d = first + i % columns;
      float part = 0.0f;
      for (int slice = 0; slice < kWarps; ++slice) part = __fadd_rn(part, slices[slice * kRowsHeads * columns + i]);
      const int64_t state = query * shape.heads + head + h;
      const SunkState sunk = with_sink(params.sinks, head + h, shared.m[h], shared.l[h]);
      params.state.o[state * dim + d] = __fmul_rn(part, sunk.keep);
      if (d == 0) reinterpret_cast<float2*>(params.state.ml)[state] = {sunk.m, sunk.l};
    }
  }
}

}  // namespace

void tail_rows(const TailAttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  const dim3 grid(static_cast<unsigned>(shape.queries),
                  static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
  launch(walk_tail, "walk_tail", grid, kThreads, tail_shared_bytes(shape.head_dim), params, stream);
}

}  // namespace headrace::kernels::cuda
