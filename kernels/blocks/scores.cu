// What stands for a block's score (SpecPV section 3.2, Quest section 3.3). Quest's bounds, averaged, read each summary
// once, in accesses of 16 bytes where they allow it; the other scores are products of every query with every summary.
// Every sum has one order. Compiled without contraction, as the CPU bodies are.
#include "kernels/blocks/bodies.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/with_type.cuh"

namespace headrace::kernels::cuda {

namespace {

// An element of a query; 0 if it is not finite.
__device__ inline float finite(float value) { return isfinite(value) ? value : 0.0f; }

// ---- By mean parts --------------------------------------------------------------------------------------------------

constexpr int kPartChunks = 4, kPartRows = 32, kPartThreads = kPartChunks * kPartRows;
constexpr int kMeanThreads = 256;
template <typename T>
constexpr int kBlocksTogether = 16 / sizeof(T);  // blocks whose chunks a thread has in flight

// The sum of Quest's bounds is the bound of sums: for each element, the mean over queries and heads of its positive
// part, then of its negative part. Grid: runs of chunks x KV heads. A thread: one chunk of every kPartRows-th row.
template <typename T>
__global__ void __launch_bounds__(kPartThreads) mean_parts_kernel(ScoreBlocksParams p, bool aligned) {
  __shared__ float parts[2 * kChunk][kPartThreads + kPartChunks];  // padded: lanes read different banks, too
  const auto dim = static_cast<int>(p.head_dim), group = static_cast<int>(p.heads / p.kv_heads);
  const int rows = static_cast<int>(p.queries) * group,
            first_column = static_cast<int>(blockIdx.x) * kPartChunks * kChunk;
  const int column = first_column + static_cast<int>(threadIdx.x) % kPartChunks * kChunk;
  const int count = chunk_count(dim, column);
  const T* const q = static_cast<const T*>(p.q) + blockIdx.y * static_cast<int64_t>(group * dim) + column;
  float positive[kChunk] = {}, negative[kChunk] = {};
#pragma unroll 8
  for (int row = static_cast<int>(threadIdx.x) / kPartChunks; row < rows; row += kPartRows) {
    float values[kChunk];
    load_chunk(q + row / group * p.q_stride + row % group * dim, count, aligned, values);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      positive[i] += fmaxf(finite(values[i]), 0.0f);
      negative[i] += fminf(finite(values[i]), 0.0f);
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    parts[i][threadIdx.x] = positive[i];
    parts[kChunk + i][threadIdx.x] = negative[i];
  }
  __syncthreads();
  constexpr int kElements = kPartChunks * kChunk;
  const auto half = static_cast<int>(threadIdx.x) / kElements, element = static_cast<int>(threadIdx.x) % kElements;
  if (half >= 2 || first_column + element >= dim) return;
  float sum = 0.0f;
#pragma unroll
  for (int row = 0; row < kPartRows; ++row) {
    sum += parts[half * kChunk + element % kChunk][row * kPartChunks + element / kChunk];
  }
  p.workspace[(blockIdx.y * 2 + half) * static_cast<int64_t>(dim) + first_column + element] =
      sum / static_cast<float>(rows);
}

// Grid: runs of blocks x KV heads. `lanes` lanes multiply a summary with the parts; the blocks of a run are processed
// concurrently.
template <typename T>
__global__ void __launch_bounds__(kMeanThreads, sizeof(T) == 4 ? 3 : 4)
    score_means_kernel(ScoreBlocksParams p, bool aligned, int lanes) {
  constexpr int kTogether = kBlocksTogether<T>;
  const auto size = static_cast<int>(2 * p.head_dim), blocks = static_cast<int>(p.count);
  const auto lane = static_cast<int>(threadIdx.x) % lanes, groups = kMeanThreads / lanes, apart = groups * size;
  const int first = static_cast<int>(blockIdx.x) * groups * kTogether + static_cast<int>(threadIdx.x) / lanes;
  const int64_t head = blockIdx.y;
  const T* const summaries = static_cast<const T*>(p.summaries) + (head * p.blocks + p.first_block + first) * size;
  const float* const parts = p.workspace + head * size;
  float sums[kTogether] = {};
  for (int column = lane * kChunk; column < size; column += lanes * kChunk) {
    const int count = chunk_count(size, column);
    float part[kChunk], keys[kChunk];
    const auto add = [&](int j) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sums[j] = fmaf(part[i], keys[i], sums[j]);
    };
    if (aligned && count == kChunk && first + (kTogether - 1) * groups < blocks) {
      RawChunk<T> raw[kTogether];
#pragma unroll
      for (int j = 0; j < kTogether; ++j) raw[j].load(summaries + (j * apart + column));
      load_chunk(parts + column, kChunk, true, part);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        raw[j].widen_to(keys);
        add(j);
      }
    } else {
      load_chunk(parts + column, count, false, part);
#pragma unroll
      for (int j = 0; j < kTogether; ++j) {
        if (first + j * groups >= blocks) continue;
        load_chunk(summaries + (j * apart + column), count, false, keys);
        add(j);
      }
    }
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    if (distance >= lanes) continue;
#pragma unroll
    for (int j = 0; j < kTogether; ++j) sums[j] += __shfl_xor_sync(0xffffffff, sums[j], distance);
  }
  if (lane > 0) return;
#pragma unroll
  for (int j = 0; j < kTogether; ++j) {
    if (first + j * groups < blocks) p.scores[head * p.count + first + j * groups] = sums[j];
  }
}

// ---- Query by query -------------------------------------------------------------------------------------------------

constexpr int kRowThreads = 256;
constexpr int kTileBlocks = 64, kTileRows = 64, kTileStep = 16;  // of dimensions
constexpr int kEach = 4;                                         // blocks, and rows, per thread
constexpr int kAcross = kTileBlocks / kEach;
static_assert(kAcross * (kTileRows / kEach) == kRowThreads);
static_assert(kTileStep == 2 * kChunk && kTileBlocks * 2 * 2 == kRowThreads);  // one chunk of keys per thread

struct RowsTile {  // in shared memory, transposed: concurrent writes use different banks
  float keys[kTileStep][2][kTileBlocks];
  float queries[kTileStep][2][kTileRows];  // factors for the maximum and for the minimum; SpecPV's score uses one
  float reduced[kTileRows / kEach][kTileBlocks];
};

// The rows that are reduced together: for the mean all rows of a group, for the maximum those of one head.
struct RowsPart {
  int first_head, heads, rows;
  __device__ int64_t element(const ScoreBlocksParams& p, int row) const {
    return row / heads * p.q_stride + (first_head + row % heads) * p.head_dim;
  }
};

// A thread's part of a tile: a chunk of keys and, for the first half of the threads, one of queries. They are loaded
// while the previous tile is multiplied. Lanes load neighbouring blocks, and neighbouring rows.
struct TileShare {
  float keys[kChunk], queries[kChunk];

  __device__ void load(const ScoreBlocksParams& p, const RowsPart& part, int first_row, int64_t first_block, int column,
                       bool q_aligned, bool k_aligned) {
    const auto place = static_cast<int>(threadIdx.x) % kTileBlocks, which = static_cast<int>(threadIdx.x) / kTileBlocks;
    const int64_t block = first_block + place, head = blockIdx.y;
    const int key_column = column + which / 2 * kChunk;
    const int64_t key_row = (head * p.blocks + p.first_block + block) * 2 + which % 2;
    load_chunk(p.k_type, p.summaries, key_row * p.head_dim + key_column,
               block < p.count ? chunk_count(p.head_dim, key_column) : 0, k_aligned, keys);
    if (which >= 2) return;
    const int row = first_row + place, q_column = column + which * kChunk;
    load_chunk(p.type, p.q, part.element(p, row) + q_column, row < part.rows ? chunk_count(p.head_dim, q_column) : 0,
               q_aligned, queries);
  }
  template <BlockScore kScore>
  __device__ void store(RowsTile& tile) const {
    const auto place = static_cast<int>(threadIdx.x) % kTileBlocks, which = static_cast<int>(threadIdx.x) / kTileBlocks;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) tile.keys[which / 2 * kChunk + i][which % 2][place] = keys[i];
    if (which >= 2) return;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      float(&to)[2][kTileRows] = tile.queries[which * kChunk + i];
      const float query = finite(queries[i]);
      to[0][place] = kScore == BlockScore::kQuest ? fmaxf(query, 0.0f) : query;
      if (kScore == BlockScore::kQuest) to[1][place] = fminf(query, 0.0f);
    }
  }
};

// Adds the products of this thread's rows with the maxima and minima of its blocks.
template <BlockScore kScore>
__device__ void multiply_tile(const RowsTile& tile, float (&most)[kEach][kEach], float (&least)[kEach][kEach]) {
  const auto across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
#pragma unroll
  for (int k = 0; k < kTileStep; ++k) {
    float with_most[kEach], with_least[kEach], largest[kEach], smallest[kEach];
    *reinterpret_cast<float4*>(with_most) = *reinterpret_cast<const float4*>(&tile.queries[k][0][down * kEach]);
    constexpr int kOther = kScore == BlockScore::kQuest ? 1 : 0;
    *reinterpret_cast<float4*>(with_least) = *reinterpret_cast<const float4*>(&tile.queries[k][kOther][down * kEach]);
    *reinterpret_cast<float4*>(largest) = *reinterpret_cast<const float4*>(&tile.keys[k][0][across * kEach]);
    *reinterpret_cast<float4*>(smallest) = *reinterpret_cast<const float4*>(&tile.keys[k][1][across * kEach]);
#pragma unroll
    for (int row = 0; row < kEach; ++row) {
#pragma unroll
      for (int block = 0; block < kEach; ++block) {
        most[row][block] = fmaf(with_most[row], largest[block], most[row][block]);
        least[row][block] = fmaf(with_least[row], smallest[block], least[row][block]);
      }
    }
  }
}

// Folds the scores of this thread's rows into those of its blocks, and clears the products. `rows`: from the tile's
// first on.
template <BlockScore kScore>
__device__ void reduce_tile(bool mean, int rows, float (&most)[kEach][kEach], float (&least)[kEach][kEach],
                            float (&reduced)[kEach]) {
  const int first = static_cast<int>(threadIdx.x) / kAcross * kEach;
#pragma unroll
  for (int row = 0; row < kEach; ++row) {
#pragma unroll
    for (int block = 0; block < kEach; ++block) {
      const float score = kScore == BlockScore::kQuest ? most[row][block] + least[row][block]
                                                       : fmaxf(most[row][block], least[row][block]);
      most[row][block] = least[row][block] = 0.0f;
      if (first + row < rows) reduced[block] = mean ? reduced[block] + score : fmaxf(reduced[block], score);
    }
  }
}

// Grid: tiles of blocks x KV heads.
template <BlockScore kScore>
__global__ void __launch_bounds__(kRowThreads, 2)
    score_rows_kernel(ScoreBlocksParams p, bool q_aligned, bool k_aligned) {
  __shared__ __align__(16) RowsTile tile;
  const auto thread = static_cast<int>(threadIdx.x), across = thread % kAcross, down = thread / kAcross;
  const auto group = static_cast<int>(p.heads / p.kv_heads), dim = static_cast<int>(p.head_dim);
  const bool mean = p.reduce == BlockReduce::kMean;
  const int64_t first_block = static_cast<int64_t>(blockIdx.x) * kTileBlocks;
  const int first_head = static_cast<int>(blockIdx.y) * group, parts = mean ? 1 : group;
  TileShare share;
  float total = 0.0f;  // of block `thread`
  for (int n = 0; n < parts; ++n) {
    const int heads = mean ? group : 1;
    const RowsPart part{first_head + n, heads, heads * static_cast<int>(p.queries)};
    float reduced[kEach], most[kEach][kEach] = {}, least[kEach][kEach] = {};
#pragma unroll
    for (int block = 0; block < kEach; ++block) reduced[block] = mean ? 0.0f : -INFINITY;
    int column = 0;
    share.load(p, part, 0, first_block, 0, q_aligned, k_aligned);
    for (int first_row = 0; first_row < part.rows;) {
      __syncthreads();
      share.store<kScore>(tile);
      __syncthreads();
      column = column + kTileStep < dim ? column + kTileStep : 0;
      const int next_row = column > 0 ? first_row : first_row + kTileRows;
      if (next_row < part.rows) share.load(p, part, next_row, first_block, column, q_aligned, k_aligned);
      multiply_tile<kScore>(tile, most, least);
      if (column == 0) reduce_tile<kScore>(mean, part.rows - first_row, most, least, reduced);
      first_row = next_row;
    }
#pragma unroll
    for (int block = 0; block < kEach; ++block) tile.reduced[down][across * kEach + block] = reduced[block];
    __syncthreads();
    if (thread < kTileBlocks) {
      float all = tile.reduced[0][thread];
      for (int i = 1; i < kTileRows / kEach; ++i) {
        const float other = tile.reduced[i][thread];
        all = mean ? all + other : fmaxf(all, other);
      }
      total += mean ? all / static_cast<float>(part.rows) : all;
    }
  }
  if (thread < kTileBlocks && first_block + thread < p.count) {
    p.scores[blockIdx.y * p.count + first_block + thread] = total / static_cast<float>(parts);
  }
}

// =====================================================================================================================

// Lanes per summary: one per chunk, up to a warp.
int summary_lanes(int64_t head_dim) {
  int lanes = 1;
  while (lanes < 32 && lanes * kChunk < 2 * head_dim) lanes *= 2;
  return lanes;
}

void launch_mean_parts(const ScoreBlocksParams& params, bool aligned, CudaStream& stream) {
  with_type(params.type, [&](auto t) {
    launch_on(stream, "mean_parts", {ceil_div(params.head_dim, kPartChunks * kChunk), params.kv_heads, kPartThreads},
              mean_parts_kernel<decltype(t)>, params, aligned);
  });
}

template <typename T>
void launch_score_means(const ScoreBlocksParams& params, CudaStream& stream) {
  const int lanes = summary_lanes(params.head_dim);
  const bool aligned = chunks_aligned(params.summaries, params.k_type, 2 * params.head_dim) &&
                       chunks_aligned(params.workspace, DType::kF32, 2 * params.head_dim);
  const int64_t together = kMeanThreads / lanes * kBlocksTogether<T>;
  launch_on(stream, "score_means", {ceil_div(params.count, together), params.kv_heads, kMeanThreads},
            score_means_kernel<T>, params, aligned, lanes);
}

}  // namespace

void score_blocks(const ScoreBlocksParams& params, Stream& stream) {
  CudaStream& native = cuda_stream(stream);
  const bool q_aligned =
      chunks_aligned(params.q, params.type, params.q_stride) && chunks_aligned(params.q, params.type, params.head_dim);
  if (params.score == BlockScore::kQuest && params.reduce == BlockReduce::kMean) {
    launch_mean_parts(params, q_aligned, native);
    return with_type(params.k_type, [&](auto t) { launch_score_means<decltype(t)>(params, native); });
  }
  const bool k_aligned = chunks_aligned(params.summaries, params.k_type, params.head_dim);
  launch_on(native, "score_rows", {ceil_div(params.count, kTileBlocks), params.kv_heads, kRowThreads},
            params.score == BlockScore::kQuest ? score_rows_kernel<BlockScore::kQuest>
                                               : score_rows_kernel<BlockScore::kSpecPv>,
            params, q_aligned, k_aligned);
}

}  // namespace headrace::kernels::cuda
