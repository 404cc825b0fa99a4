// The tail of decode attention, in the order of positions along each query's path, and the end: the fold with the
// prefix's state. Also the empty states.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.cuh"
#include "kernels/cuda/attention_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 512, kWarps = kThreads / 32;
constexpr int kMostRows = kTailWindow + kPrefixTile;  // of a tail
// Scores: a warp has 8 lanes on a row, with 8 elements each at a time, and kScoreRows rows. Values: 32 lanes on a row,
// with 4 elements each, and kValueRows rows in flight.
constexpr int kRowLanes = 8, kScoreDims = 8, kScoreRows = 2 * 32 / kRowLanes;
constexpr int kValueDims = 4, kValueRows = 7;
static_assert(kMostRows % 32 == 0 && kRowsHeads == 4);

// How elements are read: all of one type, known when compiled, or of any types, in pairs. kCount: 4 or 8.
template <DType kElement>
struct OneType {
  static constexpr int kBytes = kElement == DType::kF32 ? 4 : 2;
  template <int kCount>
  struct Raw {
    uint32_t words[kCount * kBytes / 4];
  };
  template <int kCount>
  __device__ static Raw<kCount> fetch(const void* row, DType, int d, int) {
    Raw<kCount> raw;
    const char* from = static_cast<const char*>(row) + d * kBytes;
    constexpr int kWords = kCount * kBytes / 4;
    if constexpr (kWords == 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from);
      raw.words[0] = two.x;
      raw.words[1] = two.y;
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i += 4) {
        const uint4 four = *reinterpret_cast<const uint4*>(from + i * 4);
        raw.words[i] = four.x;
        raw.words[i + 1] = four.y;
        raw.words[i + 2] = four.z;
        raw.words[i + 3] = four.w;
      }
    }
    return raw;
  }
  template <int kCount>
  __device__ static void widen(const Raw<kCount>& raw, float (&to)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      if constexpr (kElement == DType::kF32) {
        to[i] = __uint_as_float(raw.words[i]);
        to[i + 1] = __uint_as_float(raw.words[i + 1]);
      } else {
        const float2 two = load_pair(&raw.words[i / 2], kElement, 0);
        to[i] = two.x;
        to[i + 1] = two.y;
      }
    }
  }
};
struct AnyType {
  template <int kCount>
  struct Raw {
    float values[kCount];
  };
  template <int kCount>
  __device__ static Raw<kCount> fetch(const void* row, DType type, int d, int dim) {
    Raw<kCount> raw;
#pragma unroll
    for (int i = 0; i < kCount; i += 2) {
      const float2 two = d + i < dim ? load_pair(row, type, d + i) : float2{};
      raw.values[i] = two.x;
      raw.values[i + 1] = two.y;
    }
    return raw;
  }
  template <int kCount>
  __device__ static void widen(const Raw<kCount>& raw, float (&to)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) to[i] = raw.values[i];
  }
};

struct TailShared {
  float4 s[kMostRows];  // scores, then weights, of the heads
  RowPlace place[kMostRows];
  alignas(16) float q[kRowsHeads][kRowsDim];  // see place_of_q
  float m[kRowsHeads], l[kRowsHeads];
};
int tail_shared_bytes(int64_t dim) {
  static_assert(sizeof(TailShared) + kWarps * kRowsHeads * kRowsDim * sizeof(float) <= 99 * 1024);
  return static_cast<int>(sizeof(TailShared) + kWarps * kRowsHeads * static_cast<size_t>(dim) * sizeof(float));
}

// Where an element of q stands: the lanes of a row read 4 of their 8 elements at a time, without bank conflicts.
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
template <typename Type>
__device__ void score_rows(TailShared& shared, const AttentionShape& shape, int count) {
  const int lane = threadIdx.x % 32, dim = static_cast<int>(shape.head_dim);
  const int row_lane = lane % kRowLanes, row = lane / kRowLanes;
  for (int first = threadIdx.x / 32 * kScoreRows; first < count; first += kWarps * kScoreRows) {
    const void* const rows[2] = {shared.place[min(first + row, count - 1)].k,
                                 shared.place[min(first + row + 4, count - 1)].k};
    float sums[kRowLanes] = {};  // [2][kRowsHeads]
    for (int d = row_lane * kScoreDims; d < dim; d += kRowLanes * kScoreDims) {
      typename Type::template Raw<kScoreDims> raw[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) raw[i] = Type::template fetch<kScoreDims>(rows[i], shape.k_type, d, dim);
      float k[2][kScoreDims];
#pragma unroll
      for (int i = 0; i < 2; ++i) Type::template widen<kScoreDims>(raw[i], k[i]);
#pragma unroll
      for (int h = 0; h < kRowsHeads; ++h) {
#pragma unroll
        for (int part = 0; part < kScoreDims; part += 4) {
          const float4 q = *reinterpret_cast<const float4*>(&shared.q[h][place_of_q(d + part)]);
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
    halve<1>(sums);  // now each lane has the sum that is numbered as it is in its row
    const int scored = first + row + row_lane / kRowsHeads * 4;
    if (scored < count) {
      reinterpret_cast<float*>(&shared.s[scored])[row_lane % kRowsHeads] = __fmul_rn(sums[0], shape.scale);
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
  for (int d = lane * kValueDims; d < dim; d += 32 * kValueDims) {
    float o[kRowsHeads][kValueDims] = {};
    for (int first = warp; first < count; first += kWarps * kValueRows) {
      typename Type::template Raw<kValueDims> raw[kValueRows];
#pragma unroll
      for (int i = 0; i < kValueRows; ++i) {
        const int row = min(first + i * kWarps, count - 1);
        raw[i] = Type::template fetch<kValueDims>(shared.place[row].v, shape.v_type, d, dim);
      }
#pragma unroll
      for (int i = 0; i < kValueRows; ++i) {
        const int row = first + i * kWarps;
        if (row >= count) break;
        float v[kValueDims];
        Type::template widen<kValueDims>(raw[i], v);
        const float4 weight = shared.s[row];
        const float weights[kRowsHeads] = {weight.x, weight.y, weight.z, weight.w};
#pragma unroll
        for (int h = 0; h < kRowsHeads; ++h) {
#pragma unroll
          for (int j = 0; j < kValueDims; ++j) o[h][j] = __fmaf_rn(weights[h], v[j], o[h][j]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kRowsHeads; ++h) {
      float* const to = slices + (warp * kRowsHeads + h) * dim + d;
#pragma unroll
      for (int j = 0; j < kValueDims; ++j) {
        if (d + j < dim) to[j] = o[h][j];
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
    shared.q[h][place_of_q(d)] = h < heads && d < dim ? load_one(params.q, shape.type, index) : 0.0f;
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
  if (shape.k_type != shape.v_type || shape.head_dim % kScoreDims != 0) return launch_tail<AnyType>(params, on);
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
