// Chunks of a layer's rows, scored by one query: a warp computes a chunk's states for a few query heads of one KV head;
// then the states of a head are added, and at last the heads' shares of a chunk. Every sum has one order.
#include <algorithm>

#include "kernels/attention/launch.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/chunks/bodies.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/with_type.cuh"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr unsigned kAll = 0xffffffff;
constexpr int kStateThreads = 256, kStateWarps = kStateThreads / 32;
constexpr int kHeads = 4;  // query heads of a warp

// ---- Keys -----------------------------------------------------------------------------------------------------------

// The rows of one KV head in a segment.
struct Keys {
  DevicePlaneRow first;
  int64_t bytes, parameters_each;  // of a row
  int dim;
  DType type;

  __device__ Keys(const ScoreChunksParams& call, const KvSegment& segment, int64_t kv_head)
      : first(plane_row(segment.k, call.k_type, call.kv_heads, segment.stride_rows, call.head_dim, kv_head,
                        segment.first_row)),
        bytes(value_bytes(call.k_type, call.head_dim)),
        parameters_each(parameter_count(call.k_type, call.head_dim)),
        dim(static_cast<int>(call.head_dim)),
        type(call.k_type) {}
};

// Eight elements of a row, in flight: of exact rows whose chunks can be accessed whole.
template <typename T>
struct WholeKey {
  static constexpr int kTogether = 16 / sizeof(T);  // of a lane
  RawChunk<T> raw = {};
  __device__ void load(const Keys& keys, int row, int column) {
    raw.load(reinterpret_cast<const T*>(keys.first.values + row * keys.bytes) + column);
  }
  __device__ void widen_to(float (&values)[kChunk]) const { raw.widen_to(values); }
};

// The same of any row.
struct AnyKey {
  static constexpr int kTogether = 4;
  float held[kChunk] = {};
  __device__ void load(const Keys& keys, int row, int column) {
    const char* const values = keys.first.values + row * keys.bytes;
    const int count = chunk_count(keys.dim, column);
    if (!is_low_bit(keys.type)) return load_chunk(keys.type, values, column, count, false, held);
    const __half* const parameters = keys.first.parameters + row * keys.parameters_each;
#pragma unroll
    for (int i = 0; i < kChunk; i += 2) {
      if (i >= count) break;
      const float2 pair = load_low_bit_pair(values, parameters, keys.type, column + i);
      held[i] = pair.x;
      held[i + 1] = pair.y;
    }
  }
  __device__ void widen_to(float (&values)[kChunk]) const {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) values[i] = held[i];
  }
};

// ---- States ---------------------------------------------------------------------------------------------------------

// A weight of 1 for a state without rows: its l is 0, or NaN.
__device__ inline float state_weight(float m, float top) {
  return m == -INFINITY ? 1.0f : weight_of(__fsub_rn(m, top));
}

// A lane's part of a warp's work: eight columns of every row that the lane's group of lanes reads. A group's sums end
// in lanes by query head, head i in those whose number is i modulo kHeads. `lanes`: of a group, a power of two.
struct Lane {
  static_assert(kHeads == 4);
  const int lanes, column, place;  // place: of the group in the warp
  float q[kHeads][kChunk];
  float m = -INFINITY, l = 0.0f;

  __device__ explicit Lane(int group)
      : lanes(group),
        column(static_cast<int>(threadIdx.x) % group * kChunk),
        place(static_cast<int>(threadIdx.x) % 32 / group) {}

  __device__ int rows_at_once() const { return 32 / lanes; }

  __device__ float score(const float (&key)[kChunk]) const {
    float sums[kHeads] = {};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sums[h] = __fmaf_rn(q[h][i], key[i], sums[h]);
    }
    const bool odd = threadIdx.x % 2 != 0, upper = threadIdx.x % 4 >= 2;
    float half[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float keep = upper ? sums[h + 2] : sums[h], give = upper ? sums[h] : sums[h + 2];
      half[h] = __fadd_rn(keep, __shfl_xor_sync(kAll, give, 2));
    }
    const float keep = odd ? half[1] : half[0], give = odd ? half[0] : half[1];
    float sum = __fadd_rn(keep, __shfl_xor_sync(kAll, give, 1));
#pragma unroll
    for (int distance = 4; distance < 32; distance *= 2) {
      if (distance < lanes) sum = __fadd_rn(sum, __shfl_xor_sync(kAll, sum, distance));
    }
    return sum;
  }

  // Adds rows; the score of one that is not there is -inf.
  template <int kCount>
  __device__ void add(const float (&scores)[kCount]) {
    float top = m;
#pragma unroll
    for (int i = 0; i < kCount; ++i) top = fmaxf(top, scores[i]);
    l = __fmul_rn(l, state_weight(m, top));
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (scores[i] != -INFINITY) l = __fadd_rn(l, weight_of(__fsub_rn(scores[i], top)));
    }
    m = top;
  }

  // Rows [first, last) of the keys.
  template <typename Key>
  __device__ void see(const Keys& keys, int first, int last, float scale) {
    constexpr int kTogether = Key::kTogether;
    for (int begin = first + place; begin - place < last; begin += kTogether * rows_at_once()) {
      Key key[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int row = begin + i * rows_at_once();
        if (row < last && column < keys.dim) key[i].load(keys, row, column);
      }
      float scores[kTogether];
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        float values[kChunk];
        key[i].widen_to(values);
        const float sum = score(values);
        scores[i] = begin + i * rows_at_once() < last ? __fmul_rn(sum, scale) : -INFINITY;
      }
      add(scores);
    }
  }

  // The state of all groups' rows, in the first kHeads lanes.
  __device__ float2 all_groups() const {
    float2 state = {m, l};
#pragma unroll
    for (int distance = 16; distance >= 4; distance /= 2) {
      if (distance < lanes) break;
      const float2 other = {__shfl_down_sync(kAll, state.x, distance), __shfl_down_sync(kAll, state.y, distance)};
      const float top = fmaxf(state.x, other.x);
      state.y = __fmaf_rn(state.y, state_weight(state.x, top), __fmul_rn(other.y, state_weight(other.x, top)));
      state.x = top;
    }
    return state;
  }
};

// The last segment that does not begin beyond the row.
__device__ inline int segment_of_row(const ChunkStatesParams& p, int row) {
  int low = 0, high = static_cast<int>(p.segment_count) - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (p.segments[middle].position <= row) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

// Grid: (blocks of chunks x parts of a KV head's query heads) x KV heads. Parts of the same rows run side by side, so
// that all but the first find them in the cache.
template <typename Key>
__global__ void __launch_bounds__(kStateThreads, 2)
    chunk_states_kernel(const __grid_constant__ ChunkStatesParams p, int lanes, bool q_aligned) {
  const ScoreChunksParams& call = p.all.call;
  const int group = static_cast<int>(call.heads / call.kv_heads), parts = (group + kHeads - 1) / kHeads;
  const int part = static_cast<int>(blockIdx.x) % parts, heads = min(kHeads, group - part * kHeads);
  const int in_run = static_cast<int>(blockIdx.x) / parts * kStateWarps + static_cast<int>(threadIdx.x) / 32;
  if (in_run >= p.count) return;
  const int64_t chunk = p.first + in_run, head = static_cast<int64_t>(blockIdx.y) * group + part * kHeads;
  Lane lane(lanes);
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    load_chunk(call.type, call.q, (head + min(h, heads - 1)) * call.head_dim + lane.column,
               chunk_count(call.head_dim, lane.column), q_aligned, lane.q[h]);
  }
  const int begin = static_cast<int>(chunk * call.chunk_rows);
  const int end = static_cast<int>(min(chunk * call.chunk_rows + call.chunk_rows, call.rows));
  int n = segment_of_row(p, begin);
  for (int row = begin; row < end; ++n) {
    const KvSegment& segment = p.segments[n];
    const int last = min(end - segment.position, segment.rows);
    lane.see<Key>(Keys(call, segment, blockIdx.y), row - segment.position, last, call.scale);
    row = segment.position + last;
  }
  const float2 state = lane.all_groups();
  const int h = static_cast<int>(threadIdx.x) % 32;
  if (h < heads) reinterpret_cast<float2*>(p.all.states)[(head + h) * p.all.chunks + chunk] = state;
}

// ---- Scores ---------------------------------------------------------------------------------------------------------

constexpr int kTotalThreads = 256, kTotalWarps = kTotalThreads / 32, kScoreThreads = 128;

// By all threads of a block. `combine` does not depend on the order of its two.
template <typename Combine>
__device__ float combine_all(float value, float (&parts)[kTotalWarps], const Combine& combine) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(kAll, value, distance));
  }
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  value = parts[0];
  for (int i = 1; i < kTotalWarps; ++i) value = combine(value, parts[i]);
  return value;
}

// Grid: query heads.
__global__ void __launch_bounds__(kTotalThreads) chunk_totals_kernel(ChunkScoresParams p) {
  __shared__ float tops[kTotalWarps], sums[kTotalWarps];
  const float2* const states = reinterpret_cast<const float2*>(p.states) + blockIdx.x * p.chunks;
  float top = -INFINITY, sum = 0.0f;
  for (int64_t chunk = threadIdx.x; chunk < p.chunks; chunk += kTotalThreads) top = fmaxf(top, states[chunk].x);
  top = combine_all(top, tops, [](float a, float b) { return fmaxf(a, b); });
  for (int64_t chunk = threadIdx.x; chunk < p.chunks; chunk += kTotalThreads) {
    sum = __fmaf_rn(states[chunk].y, state_weight(states[chunk].x, top), sum);
  }
  sum = combine_all(sum, sums, [](float a, float b) { return __fadd_rn(a, b); });
  if (threadIdx.x == 0) reinterpret_cast<float2*>(p.totals)[blockIdx.x] = {top, sum};
}

// A thread: one chunk.
__global__ void __launch_bounds__(kScoreThreads) chunk_scores_kernel(ChunkScoresParams p) {
  const int64_t chunk = static_cast<int64_t>(blockIdx.x) * kScoreThreads + threadIdx.x;
  if (chunk >= p.chunks) return;
  const int heads = static_cast<int>(p.call.heads);
  float sum = 0.0f;
#pragma unroll 8
  for (int head = 0; head < heads; ++head) {
    const float2 state = reinterpret_cast<const float2*>(p.states)[head * p.chunks + chunk];
    const float2 total = reinterpret_cast<const float2*>(p.totals)[head];
    sum = __fadd_rn(sum, __fdiv_rn(__fmul_rn(state.y, state_weight(state.x, total.x)), total.y));
  }
  const int64_t rows = min(p.call.chunk_rows, p.call.rows - chunk * p.call.chunk_rows);
  p.call.scores[chunk] = __fdiv_rn(sum, static_cast<float>(heads * rows));
}

// ---- Rows -----------------------------------------------------------------------------------------------------------

constexpr int kExpandThreads = 256;

__global__ void __launch_bounds__(kExpandThreads) expand_chunks_kernel(ChooseChunksParams p) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kExpandThreads + threadIdx.x;
  if (i >= p.keep * p.chunk_rows) return;
  p.rows[i] = static_cast<int32_t>(p.chosen[i / p.chunk_rows] * p.chunk_rows + i % p.chunk_rows);
}

// =====================================================================================================================

// Whether every chunk of every row can be accessed whole.
bool whole_keys(const ChunkStatesParams& params) {
  const ScoreChunksParams& call = params.all.call;
  if (low_bit(call.k_type) || call.head_dim % kChunk != 0) return false;
  return std::all_of(params.segments, params.segments + params.segment_count,
                     [&](const KvSegment& segment) { return chunks_aligned(segment.k, call.k_type, call.head_dim); });
}

// Lanes that read a row: one per chunk, at least one per query head.
int row_lanes(int64_t head_dim) {
  int lanes = kHeads;
  while (lanes * kChunk < head_dim) lanes *= 2;
  return lanes;
}
static_assert(kMaxChunkHeadDim <= 32 * kChunk);

// The op of attention that rotates the queries for int4 rows.
void rotate(const ScoreChunksParams& call, void* out, CudaStream& stream) {
  PrefixAttentionParams params{};
  params.shape = {1,         call.heads,  call.kv_heads, call.head_dim, call.heads * call.head_dim,
                  call.type, call.k_type, call.k_type,   call.scale};
  params.q = call.q;
  params.rotated_q = out;
  rotate_queries(params, stream);
}

template <typename Key>
void launch_states(const ChunkStatesParams& params, CudaStream& stream) {
  const ScoreChunksParams& call = params.all.call;
  const int64_t parts = ceil_div(call.heads / call.kv_heads, kHeads);
  launch_on(stream, "chunk_states", {ceil_div(params.count, kStateWarps) * parts, call.kv_heads, kStateThreads},
            chunk_states_kernel<Key>, params, row_lanes(call.head_dim),
            chunks_aligned(call.q, call.type, call.head_dim));
}

}  // namespace

void chunk_states(const ChunkStatesParams& params, Stream& stream) {
  CudaStream& native = cuda_stream(stream);
  if (params.all.call.k_type == DType::kInt4) {
    ChunkStatesParams rotated = params;
    rotated.all.call.q = params.all.rotated_q;
    rotate(params.all.call, params.all.rotated_q, native);
    return launch_states<AnyKey>(rotated, native);
  }
  if (!whole_keys(params)) return launch_states<AnyKey>(params, native);
  with_type(params.all.call.k_type, [&](auto t) { launch_states<WholeKey<decltype(t)>>(params, native); });
}

void chunk_scores(const ChunkScoresParams& params, Stream& stream) {
  CudaStream& native = cuda_stream(stream);
  launch_on(native, "chunk_totals", {params.call.heads, 1, kTotalThreads}, chunk_totals_kernel, params);
  launch_on(native, "chunk_scores", {ceil_div(params.chunks, kScoreThreads), 1, kScoreThreads}, chunk_scores_kernel,
            params);
}

void expand_chunks(const ChooseChunksParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "expand_chunks",
            {ceil_div(params.keep * params.chunk_rows, kExpandThreads), 1, kExpandThreads}, expand_chunks_kernel,
            params);
}

}  // namespace headrace::kernels::cuda
