// The tail of decode attention, in the order of positions along each query's path, and the end: the fold with the
// prefix's state. Also the empty states.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMostRows = kTailWindow + kPrefixTile;  // of a tail
constexpr int kBatch = 4;                             // rows whose keys a warp has in flight
constexpr int kLaneDims = 4, kWarpDims = 32 * kLaneDims;
static_assert(kMostRows % 32 == 0 && kRowsHeads == 4);

// How rows are read: all of one type, known when compiled, in fours; or of any types, in pairs.
template <DType kElement>
struct OneType {
  __device__ static float4 load(const void* row, DType, int d, int) {
    if constexpr (kElement == DType::kF32) {
      return *reinterpret_cast<const float4*>(static_cast<const float*>(row) + d);
    } else {
      const uint2 four = *reinterpret_cast<const uint2*>(static_cast<const uint16_t*>(row) + d);
      const float2 low = load_pair(&four.x, kElement, 0), high = load_pair(&four.y, kElement, 0);
      return {low.x, low.y, high.x, high.y};
    }
  }
};
struct AnyType {
  __device__ static float4 load(const void* row, DType type, int d, int dim) {
    const float2 low = load_pair(row, type, d), high = d + 2 < dim ? load_pair(row, type, d + 2) : float2{};
    return {low.x, low.y, high.x, high.y};
  }
};

struct TailShared {
  float4 s[kMostRows];  // scores, then weights, of the heads
  RowPlace place[kMostRows];
  alignas(16) float q[kRowsHeads][kRowsDim];
  float m[kRowsHeads], l[kRowsHeads];
};
int tail_shared_bytes(int64_t dim) {
  static_assert(sizeof(TailShared) + kWarps * kRowsHeads * kRowsDim * sizeof(float) <= 99 * 1024);
  return static_cast<int>(sizeof(TailShared) + kWarps * kRowsHeads * static_cast<size_t>(dim) * sizeof(float));
}

__device__ inline float dot(const float4& a, const float4& b, float sum) {
  return __fmaf_rn(a.w, b.w, __fmaf_rn(a.z, b.z, __fmaf_rn(a.y, b.y, __fmaf_rn(a.x, b.x, sum))));
}

// Half of the lanes keep the upper half of the values, the others the lower; each adds what the other sends.
template <int kHalf>
__device__ void halve(float (&values)[16]) {
  constexpr int kDistance = 2 * kHalf;
  const uint32_t upper = threadIdx.x & kDistance ? ~0u : 0u;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const uint32_t low = __float_as_uint(values[i]), high = __float_as_uint(values[i + kHalf]);
    const uint32_t swap = (low ^ high) & upper;
    const float keep = __uint_as_float(low ^ swap), send = __uint_as_float(high ^ swap);
    values[i] = __fadd_rn(keep, __shfl_xor_sync(~0u, send, kDistance));
  }
}

// Sums 16 values over the lanes of a warp, each in the same order. Lanes 2 i and 2 i + 1 get value i's sum.
__device__ inline float sum_sixteen(float (&values)[16]) {
  halve<8>(values);
  halve<4>(values);
  halve<2>(values);
  halve<1>(values);
  return __fadd_rn(values[0], __shfl_xor_sync(~0u, values[0], 1));
}

// Scores of rows [0, count), a batch a warp.
template <typename Type>
__device__ void score_rows(TailShared& shared, const AttentionShape& shape, int count) {
  const int lane = threadIdx.x % 32, dim = static_cast<int>(shape.head_dim);
  for (int first = threadIdx.x / 32 * kBatch; first < count; first += kWarps * kBatch) {
    float sums[kBatch * kRowsHeads] = {};
    for (int d = lane * kLaneDims; d < dim; d += kWarpDims) {
      float4 k[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        k[i] = Type::load(shared.place[min(first + i, count - 1)].k, shape.k_type, d, dim);
#pragma unroll
      for (int h = 0; h < kRowsHeads; ++h) {
        const float4 q = *reinterpret_cast<const float4*>(&shared.q[h][d]);
#pragma unroll
        for (int i = 0; i < kBatch; ++i) sums[i * kRowsHeads + h] = dot(q, k[i], sums[i * kRowsHeads + h]);
      }
    }
    __syncwarp();
    const float sum = sum_sixteen(sums);
    const int row = first + lane / 8;
    if (lane % 2 == 0 && row < count) {
      reinterpret_cast<float*>(&shared.s[row])[lane / 2 % 4] = __fmul_rn(sum, shape.scale);
    }
  }
}

// A head's weights, by a warp.
__device__ void weigh_rows(TailShared& shared, int h, int count) {
  const int lane = threadIdx.x % 32;
  float weights[kMostRows / 32], top = -INFINITY, sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kMostRows / 32; ++i) {
    const int row = i * 32 + lane;
    weights[i] = row < count ? reinterpret_cast<const float*>(&shared.s[row])[h] : -INFINITY;
    top = fmaxf(top, weights[i]);
  }
  for (int distance = 16; distance > 0; distance /= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, distance));
#pragma unroll
  for (int i = 0; i < kMostRows / 32; ++i) {
    const int row = i * 32 + lane;
    weights[i] = weight_of(__fsub_rn(weights[i], top));  // top is a number: a query sees at least itself
    sum = __fadd_rn(sum, weights[i]);
    if (row < count) reinterpret_cast<float*>(&shared.s[row])[h] = weights[i];
  }
  for (int distance = 16; distance > 0; distance /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, distance));
  if (lane == 0) {
    shared.m[h] = top;
    shared.l[h] = sum;
  }
}

// A warp's slice of o: every kWarps-th row, in order. slices: [kWarps, kRowsHeads, dim]
template <typename Type>
__device__ void add_rows(TailShared& shared, const AttentionShape& shape, int count, float* slices) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = static_cast<int>(shape.head_dim);
  for (int d = lane * kLaneDims; d < dim; d += kWarpDims) {
    float o[kRowsHeads][kLaneDims] = {};
#pragma unroll 4
    for (int row = warp; row < count; row += kWarps) {
      const float4 v = Type::load(shared.place[row].v, shape.v_type, d, dim);
      const float4 weight = shared.s[row];
      const float weights[kRowsHeads] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
      for (int h = 0; h < kRowsHeads; ++h) {
        o[h][0] = __fmaf_rn(weights[h], v.x, o[h][0]);
        o[h][1] = __fmaf_rn(weights[h], v.y, o[h][1]);
        o[h][2] = __fmaf_rn(weights[h], v.z, o[h][2]);
        o[h][3] = __fmaf_rn(weights[h], v.w, o[h][3]);
      }
    }
#pragma unroll
    for (int h = 0; h < kRowsHeads; ++h) {
      float* const to = slices + (warp * kRowsHeads + h) * dim + d;
#pragma unroll
      for (int i = 0; i < kLaneDims; ++i) {
        if (d + i < dim) to[i] = o[h][i];
      }
    }
  }
}

// A block: one query, up to kRowsHeads heads of a KV head. Nothing here knows another query; rows are cut by their
// distance from tail_begin, and thus by their positions.
template <typename Type>
__global__ void __launch_bounds__(kThreads, 2) tail_rows(const __grid_constant__ TailAttentionParams params) {
  extern __shared__ __align__(16) unsigned char memory[];
  TailShared& shared = *reinterpret_cast<TailShared*>(memory);
  float* const slices = reinterpret_cast<float*>(memory + sizeof(TailShared));
  const AttentionShape& shape = params.shape;
  const int query = blockIdx.x, dim = static_cast<int>(shape.head_dim);
  const int group = static_cast<int>(shape.heads / shape.kv_heads), chunks = (group + kRowsHeads - 1) / kRowsHeads;
  const int kv_head = blockIdx.y / chunks, chunk_head = blockIdx.y % chunks * kRowsHeads;
  const int head = kv_head * group + chunk_head, heads = min(kRowsHeads, group - chunk_head);
  const int t = params.positions[query], committed = *params.committed, begin = tail_begin_of(t);
  const int count = t + 1 - begin;

  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int p = begin + i;
    const bool in_ring = p < committed;
    const int64_t row = in_ring ? kv_head * params.ring_rows + p % static_cast<int>(params.ring_rows)
                                : params.path[query * params.path_stride + p - committed] * shape.kv_heads + kv_head;
    shared.place[i] = {at(in_ring ? params.ring_k : params.pass_k, shape.k_type, row * dim),
                       at(in_ring ? params.ring_v : params.pass_v, shape.v_type, row * dim)};
  }
  for (int i = threadIdx.x; i < kRowsHeads * kRowsDim; i += kThreads) {
    const int h = i / kRowsDim, d = i % kRowsDim;
    const int64_t index = query * shape.q_stride + int64_t{head + h} * dim + d;
    shared.q[h][d] = h < heads && d < dim ? load_one(params.q, shape.type, index) : 0.0f;
  }
  __syncthreads();
  score_rows<Type>(shared, shape, count);
  __syncthreads();
  if (threadIdx.x / 32 < kRowsHeads) weigh_rows(shared, threadIdx.x / 32, count);
  __syncthreads();
  add_rows<Type>(shared, shape, count, slices);
  __syncthreads();
  for (int i = threadIdx.x; i < heads * dim; i += kThreads) {
    const int h = i / dim, d = i % dim;
    float part = 0.0f;
    for (int slice = 0; slice < kWarps; ++slice) part = __fadd_rn(part, slices[slice * kRowsHeads * dim + i]);
    const int64_t state = query * shape.heads + head + h;
    const float prefix_m = params.state.ml[2 * state], prefix_l = params.state.ml[2 * state + 1];
    const float top = fmaxf(prefix_m, shared.m[h]);
    const float keep = weight_of(__fsub_rn(prefix_m, top)), add = weight_of(__fsub_rn(shared.m[h], top));
    const float o = __fmaf_rn(part, add, __fmul_rn(params.state.o[state * dim + d], keep));
    const float l = __fmaf_rn(shared.l[h], add, __fmul_rn(prefix_l, keep));
    // + 0: the sign of a zero must not tell of rows that weighed nothing.
    store_one(params.out, shape.type, state * dim + d, __fadd_rn(__fdiv_rn(o, l), 0.0f));
  }
}

template <typename Type>
void launch_tail(const TailAttentionParams& params, CudaStream& stream) {
  const AttentionShape& shape = params.shape;
  const dim3 grid(static_cast<unsigned>(shape.queries),
                  static_cast<unsigned>(shape.kv_heads * AttentionRows::chunks(shape)));
  launch(tail_rows<Type>, "tail_rows", grid, kThreads, tail_shared_bytes(shape.head_dim), params, stream);
}

constexpr int kClearThreads = 256;

__global__ void __launch_bounds__(kClearThreads) clear_states(const __grid_constant__ ClearStateParams params) {
  const int64_t states = params.queries * params.heads, i = int64_t{blockIdx.x} * kClearThreads + threadIdx.x;
  if (i < states * params.head_dim) params.state.o[i] = 0.0f;
  if (i < states) {
    params.state.ml[2 * i] = -INFINITY;
    params.state.ml[2 * i + 1] = 0.0f;
  }
}

}  // namespace

void tail_attention(const TailAttentionParams& params, Stream& stream) {
  const AttentionShape& shape = params.shape;
  CudaStream& on = cuda_stream(stream);
  if (shape.k_type != shape.v_type || shape.head_dim % kLaneDims != 0) return launch_tail<AnyType>(params, on);
  if (shape.k_type == DType::kF32) return launch_tail<OneType<DType::kF32>>(params, on);
  if (shape.k_type == DType::kF16) return launch_tail<OneType<DType::kF16>>(params, on);
  launch_tail<OneType<DType::kBF16>>(params, on);
}

void clear_state(const ClearStateParams& params, Stream& stream) {
  const int64_t values = params.queries * params.heads * params.head_dim;
  launch(clear_states, "clear_states", dim3(static_cast<unsigned>(ceil_div(values, kClearThreads))), kClearThreads, 0,
         params, cuda_stream(stream));
}

}  // namespace headrace::kernels::cuda
