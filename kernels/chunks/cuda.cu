// Chunks of a layer's rows, scored by one query: a warp computes the states of a chunk, on tensor cores for all query
// heads of a KV head, or else for one; then the states of a head are added, and at last the heads' shares of a chunk.
// Every sum has one order.
#include <algorithm>

#include "kernels/attention/launch.cuh"
#include "kernels/attention/rows.cuh"
#include "kernels/chunks/bodies.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/rows/cuda_rows.cuh"

namespace headrace::kernels::cuda {

namespace {

// ---- States ---------------------------------------------------------------------------------------------------------

constexpr int kStateThreads = 256, kStateWarps = kStateThreads / 32;

// A weight of 1 for a state without rows: its l is 0, or NaN.
__device__ inline float state_weight(float m, float top) {
  return m == -INFINITY ? 1.0f : weight_of(__fsub_rn(m, top));
}

struct State {
  float m = -INFINITY, l = 0.0f;

  __device__ void raise(float top) {
    l = __fmul_rn(l, state_weight(m, top));
    m = top;
  }
  __device__ void add(float score) {
    if (score != -INFINITY) l = __fadd_rn(l, weight_of(__fsub_rn(score, m)));
  }
  // Adds the state of another lane.
  __device__ void add_lane(int distance) {
    State other{__shfl_down_sync(kAllLanes, m, distance), __shfl_down_sync(kAllLanes, l, distance)};
    const float top = fmaxf(m, other.m);
    raise(top);
    other.raise(top);
    l = __fadd_rn(l, other.l);
  }
};

// A warp's chunk and query heads. Grid: (blocks of chunks x parts of a KV head's query heads) x KV heads. Parts of the
// same rows run side by side, so that all but the first find them in the cache.
struct WarpWork {
  int kv_head, head, heads;  // query heads [head, head + heads)
  int64_t chunk;

  __device__ WarpWork(const ChunkStatesParams& p, int most_heads) : kv_head(blockIdx.y) {
    const int group = static_cast<int>(p.all.call.heads) / static_cast<int>(p.all.call.kv_heads);
    const int parts = (group + most_heads - 1) / most_heads, part = static_cast<int>(blockIdx.x) % parts;
    head = kv_head * group + part * most_heads;
    heads = min(most_heads, group - part * most_heads);
    chunk = p.first + static_cast<int>(blockIdx.x) / parts * kStateWarps + static_cast<int>(threadIdx.x) / 32;
  }
  __device__ void store(const ChunkStatesParams& p, int h, const State& state) const {
    if (h < heads) reinterpret_cast<float2*>(p.all.states)[(head + h) * p.all.chunks + chunk] = {state.m, state.l};
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

// Calls see(place, rows) for the chunk's rows of each segment, in order; place: of the first one.
template <typename See>
__device__ inline void each_run(const ChunkStatesParams& p, const WarpWork& work, const See& see) {
  const ScoreChunksParams& call = p.all.call;
  const int begin = static_cast<int>(work.chunk * call.chunk_rows);
  const int end = static_cast<int>(min(work.chunk * call.chunk_rows + call.chunk_rows, call.rows));
  int n = segment_of_row(p, begin);
  for (int row = begin; row < end; ++n) {
    const KvSegment& segment = p.segments[n];
    const int first = row - segment.position, rows = min(end - row, segment.rows - first);
    see(plane_row(segment.k, call.k_type, call.kv_heads, segment.stride_rows, call.head_dim, work.kv_head,
                  segment.first_row + first),
        rows);
    row += rows;
  }
}

// ---- States on tensor cores -----------------------------------------------------------------------------------------

constexpr int kTileRows = 16, kTileHeads = 8;  // of one mma
constexpr int kStepColumns = 32;               // of two mmas: lane t of four has columns [8 t, 8 t + 8)

// Eight elements of a key as loaded, as the four pairs of T that they are.
template <typename T>
__device__ inline uint4 pairs_of(const uint4& exact) {
  return exact;
}
template <typename T>
__device__ inline uint4 pairs_of(const uint2& int8) {
  const auto& values = reinterpret_cast<const signed char(&)[8]>(int8);
  return {pack(values[0], values[1], T()), pack(values[2], values[3], T()), pack(values[4], values[5], T()),
          pack(values[6], values[7], T())};
}

// A lane's part of the products of kTileRows keys with kTileHeads query heads. Raw: eight elements of a key.
template <typename T, typename Raw, int kSteps>
struct Tile {
  static constexpr bool kInt8 = sizeof(Raw) == 8;
  const int g, t;  // this lane's rows g and g + 8, query heads 2 t and 2 t + 1
  uint4 q[kSteps];

  __device__ Tile(const ScoreChunksParams& call, const WarpWork& work)
      : g(static_cast<int>(threadIdx.x) % 32 / 4), t(static_cast<int>(threadIdx.x) % 4) {
    const int dim = static_cast<int>(call.head_dim), head = work.head + min(g, work.heads - 1);
    const T* const from = static_cast<const T*>(call.q) + int64_t{head} * dim;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      q[step] = column(step) < dim ? *reinterpret_cast<const uint4*>(from + column(step)) : uint4{};
    }
  }
  __device__ int column(int step) const { return step * kStepColumns + t * kChunk; }

  // Adds rows [begin, begin + kTileRows), as many as there are of `rows`, to the states of the lane's two heads.
  __device__ void see(const ScoreChunksParams& call, const DevicePlaneRow& first, int begin, int rows,
                      State (&states)[2]) const {
    const int dim = static_cast<int>(call.head_dim), row_bytes = dim * static_cast<int>(sizeof(Raw)) / kChunk;
    Raw raw[2][kSteps];
    float scale[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(begin + g + half * 8, rows - 1);  // beyond the last one: the last again
      const Raw* const from = reinterpret_cast<const Raw*>(first.values + int64_t{row} * row_bytes);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) raw[half][step] = from[min(column(step), dim - kChunk) / kChunk];
      scale[half] = kInt8 ? __fmul_rn(call.scale, __half2float(first.parameters[row])) : call.scale;
    }
    float scores[4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 low = pairs_of<T>(raw[0][step]), high = pairs_of<T>(raw[1][step]);
      multiply(scores, {low.x, high.x, low.y, high.y}, q[step].x, q[step].y, T());
      multiply(scores, {low.z, high.z, low.w, high.w}, q[step].z, q[step].w, T());
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float low = begin + g < rows ? __fmul_rn(scores[h], scale[0]) : -INFINITY;
      const float high = begin + g + 8 < rows ? __fmul_rn(scores[2 + h], scale[1]) : -INFINITY;
      states[h].raise(fmaxf(states[h].m, fmaxf(low, high)));
      states[h].add(low);
      states[h].add(high);
    }
  }
};

template <typename T, typename Raw, int kSteps>
__global__ void __launch_bounds__(kStateThreads, kSteps > 4 ? 1 : 2)
    chunk_tiles_kernel(const __grid_constant__ ChunkStatesParams p) {
  const WarpWork work(p, kTileHeads);
  if (work.chunk >= p.first + p.count) return;
  const Tile<T, Raw, kSteps> tile(p.all.call, work);
  State states[2];
  each_run(p, work, [&](const DevicePlaneRow& first, int rows) {
    for (int begin = 0; begin < rows; begin += kTileRows) tile.see(p.all.call, first, begin, rows, states);
  });
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    for (int distance = 16; distance >= 4; distance /= 2) states[h].add_lane(distance);
    if (tile.g == 0) work.store(p, 2 * tile.t + h, states[h]);
  }
}

// ---- States of all other types and shapes ---------------------------------------------------------------------------

constexpr int kLanePairs = static_cast<int>(kMaxChunkHeadDim) / 64;  // pairs of elements of a lane

__global__ void __launch_bounds__(kStateThreads, 2) chunk_rows_kernel(const __grid_constant__ ChunkStatesParams p) {
  const ScoreChunksParams& call = p.all.call;
  const WarpWork work(p, 1);
  if (work.chunk >= p.first + p.count) return;
  const int lane = static_cast<int>(threadIdx.x) % 32, dim = static_cast<int>(call.head_dim);
  const int64_t bytes = value_bytes(call.k_type, dim), parameters_each = parameter_count(call.k_type, dim);
  const bool low = is_low_bit(call.k_type);
  float2 q[kLanePairs];
#pragma unroll
  for (int i = 0; i < kLanePairs; ++i) {
    const int column = (i * 32 + lane) * 2;
    q[i] = column < dim ? load_pair(call.q, call.type, int64_t{work.head} * dim + column) : float2{0.0f, 0.0f};
  }
  State state;
  each_run(p, work, [&](const DevicePlaneRow& first, int rows) {
    for (int row = 0; row < rows; ++row) {
      const char* const values = first.values + row * bytes;
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kLanePairs; ++i) {
        const int column = (i * 32 + lane) * 2;
        if (column >= dim) continue;
        const float2 k = low ? load_low_bit_pair(values, first.parameters + row * parameters_each, call.k_type, column)
                             : load_pair(values, call.k_type, column);
        sum = __fmaf_rn(q[i].y, k.y, __fmaf_rn(q[i].x, k.x, sum));
      }
      const float score = __fmul_rn(warp_sum(sum), call.scale);
      state.raise(fmaxf(state.m, score));
      state.add(score);
    }
  });
  if (lane == 0) work.store(p, 0, state);
}

// ---- Scores ---------------------------------------------------------------------------------------------------------

constexpr int kTotalThreads = 256, kTotalWarps = kTotalThreads / 32, kScoreThreads = 128;

// By all threads of a block. `combine` does not depend on the order of its two.
template <typename Combine>
__device__ float combine_all(float value, float (&parts)[kTotalWarps], const Combine& combine) {
  value = warp_reduce(value, combine);
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
  const float before = p.call.add ? p.call.scores[chunk] : 0.0f;
  p.call.scores[chunk] = __fadd_rn(before, __fdiv_rn(sum, static_cast<float>(heads * rows)));
}

// =====================================================================================================================

// Whether the tensor cores' types have the rows, and all of their loads are aligned.
bool has_tiles(const ChunkStatesParams& params) {
  const ScoreChunksParams& call = params.all.call;
  if (call.type == DType::kF32 || (call.k_type != call.type && call.k_type != DType::kInt8)) return false;
  if (call.head_dim % kChunk != 0 || !chunks_aligned(call.q, call.type, call.head_dim)) return false;
  const uintptr_t alignment = call.k_type == DType::kInt8 ? 8 : 16;
  return std::all_of(params.segments, params.segments + params.segment_count,
                     [&](const KvSegment& segment) { return reinterpret_cast<uintptr_t>(segment.k) % alignment == 0; });
}

// The op of attention that rotates the queries for int4 rows.
void rotate(const ScoreChunksParams& call, void* out, CudaStream& stream) {
  PrefixAttentionParams params{};
  params.shape = {1,         call.heads,  call.kv_heads, call.head_dim, call.heads * call.head_dim,
                  call.type, call.k_type, call.k_type,   call.scale};
  params.q = call.q;
  params.rotated_q = out;
  rotate_queries(params, stream);
}

void launch_states(void (*kernel)(ChunkStatesParams), int most_heads, const ChunkStatesParams& params,
                   CudaStream& stream) {
  const ScoreChunksParams& call = params.all.call;
  const int64_t parts = ceil_div(call.heads / call.kv_heads, most_heads);
  launch_on(stream, "chunk_states", {ceil_div(params.count, kStateWarps) * parts, call.kv_heads, kStateThreads}, kernel,
            params);
}

template <typename T, typename Raw>
void launch_tiles(const ChunkStatesParams& params, CudaStream& stream) {
  const int64_t dim = params.all.call.head_dim;
  launch_states(dim <= 64    ? chunk_tiles_kernel<T, Raw, 2>
                : dim <= 128 ? chunk_tiles_kernel<T, Raw, 4>
                             : chunk_tiles_kernel<T, Raw, 8>,
                kTileHeads, params, stream);
}
template <typename T>
void launch_tiles(const ChunkStatesParams& params, CudaStream& stream) {
  if (params.all.call.k_type == DType::kInt8) return launch_tiles<T, uint2>(params, stream);
  launch_tiles<T, uint4>(params, stream);
}
static_assert(kMaxChunkHeadDim <= 8 * kStepColumns);

}  // namespace

void chunk_states(const ChunkStatesParams& params, Stream& stream) {
  CudaStream& native = cuda_stream(stream);
  if (has_tiles(params)) {
    if (params.all.call.type == DType::kBF16) return launch_tiles<__nv_bfloat16>(params, native);
    return launch_tiles<__half>(params, native);
  }
  ChunkStatesParams rows = params;
  if (params.all.call.k_type == DType::kInt4) {
    rotate(params.all.call, params.all.rotated_q, native);
    rows.all.call.q = params.all.rotated_q;
  }
  launch_states(chunk_rows_kernel, 1, rows, native);
}

void chunk_scores(const ChunkScoresParams& params, Stream& stream) {
  CudaStream& native = cuda_stream(stream);
  launch_on(native, "chunk_totals", {params.call.heads, 1, kTotalThreads}, chunk_totals_kernel, params);
  launch_on(native, "chunk_scores", {ceil_div(params.chunks, kScoreThreads), 1, kScoreThreads}, chunk_scores_kernel,
            params);
}

}  // namespace headrace::kernels::cuda
