// Blocks of the KV cache: summaries and scores (SpecPV section 3.2, Quest section 3.3). What is bound by memory reads
// it once, in accesses of 16 bytes where rows allow it. Every sum has one order. Compiled without contraction, as the
// CPU bodies are.
#include "kernels/cuda/blocks.h"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

namespace headrace::kernels::cuda {

namespace {

// ---- summarise_blocks -----------------------------------------------------------------------------------------------

constexpr int kSummaryThreads = 128;

// Grid: chunks of blocks x (layers x KV heads). A thread: one chunk of a block's rows.
template <typename T>
__global__ void __launch_bounds__(kSummaryThreads) summarise_kernel(SummariseBlocksParams p, bool aligned) {
  const auto chunks = static_cast<unsigned>((p.head_dim + kChunk - 1) / kChunk);
  const unsigned item = blockIdx.x * kSummaryThreads + threadIdx.x, in_call = item / chunks;
  if (in_call >= p.count) return;
  const int64_t head = blockIdx.y, layer = head / p.kv_heads, block = p.first_block + in_call;
  const int64_t column = static_cast<int64_t>(item % chunks) * kChunk, start = block * kBlockRows % p.ring_rows;
  const T* const keys =
      static_cast<const T*>(p.k) + layer * p.k_layer_stride + head % p.kv_heads * p.ring_rows * p.head_dim + column;
  const int count = chunk_count(p.head_dim, column);
  float rows[kBlockRows][kChunk];
  const auto from = [&](int row) {
    return keys + (start + row < p.ring_rows ? start + row : start + row - p.ring_rows) * p.head_dim;
  };
  if (aligned && count == kChunk) {  // apart, so that all loads are under way at once
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) load_chunk(from(row), kChunk, true, rows[row]);
  } else {
#pragma unroll
    for (int row = 0; row < kBlockRows; ++row) load_chunk(from(row), count, false, rows[row]);
  }
  float most[kChunk], least[kChunk];
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    most[i] = least[i] = rows[0][i];
#pragma unroll
    for (int row = 1; row < kBlockRows; ++row) {
      most[i] = most[i] < rows[row][i] ? rows[row][i] : most[i];
      least[i] = rows[row][i] < least[i] ? rows[row][i] : least[i];
    }
  }
  T* const out = static_cast<T*>(p.summaries) + (head * p.blocks + block) * 2 * p.head_dim + column;
  store_chunk(out, count, aligned, most);
  store_chunk(out + p.head_dim, count, aligned, least);
}

// ---- score_blocks, by mean parts ------------------------------------------------------------------------------------

constexpr int kPartThreads = 512, kMostPartRows = 32;
constexpr int kMeanThreads = 256;
constexpr int kBlocksTogether = 4;

// The sum of Quest's bounds is the bound of sums: of each element, the mean over queries and heads of its positive
// part, then of its negative part. Grid: KV heads. A thread: one chunk of every so many-th row.
__global__ void __launch_bounds__(kPartThreads) mean_parts_kernel(ScoreBlocksParams p, bool aligned) {
  __shared__ float parts[kPartThreads][2 * kChunk];
  const auto dim = static_cast<int>(p.head_dim), chunks = (dim + kChunk - 1) / kChunk;
  const int together = min(kPartThreads / chunks, kMostPartRows);  // rows
  const auto chunk = static_cast<int>(threadIdx.x) % chunks, first = static_cast<int>(threadIdx.x) / chunks;
  const auto group = static_cast<int>(p.heads / p.kv_heads), rows = static_cast<int>(p.queries) * group;
  const int64_t column = blockIdx.x * static_cast<int64_t>(group) * dim + chunk * kChunk;
  const int count = chunk_count(dim, chunk * kChunk);
  float positive[kChunk] = {}, negative[kChunk] = {};
  if (first < together) {
#pragma unroll 4
    for (int row = first; row < rows; row += together) {
      float q[kChunk];
      load_chunk(p.type, p.q, row / group * p.q_stride + row % group * dim + column, count, aligned, q);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) {
        positive[i] += fmaxf(q[i], 0.0f);
        negative[i] += fminf(q[i], 0.0f);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kChunk; ++i) {
    parts[threadIdx.x][i] = positive[i];
    parts[threadIdx.x][kChunk + i] = negative[i];
  }
  __syncthreads();
  for (auto element = static_cast<int>(threadIdx.x); element < 2 * dim; element += kPartThreads) {
    const int in_row = element % dim, place = element / dim * kChunk + in_row % kChunk;
    float sum = 0.0f;
    for (int row = 0; row < together; ++row) sum += parts[row * chunks + in_row / kChunk][place];
    p.workspace[blockIdx.x * static_cast<int64_t>(2 * dim) + element] = sum / static_cast<float>(rows);
  }
}

struct MeansAligned {
  bool summaries, parts;
};

// Grid: runs of blocks x KV heads. `lanes` lanes multiply a summary with the parts, kBlocksTogether summaries at once.
template <typename T>
__global__ void __launch_bounds__(kMeanThreads, 3)
    score_means_kernel(ScoreBlocksParams p, MeansAligned aligned, int lanes) {
  const int64_t size = 2 * p.head_dim, head = blockIdx.y;
  const auto lane = static_cast<int>(threadIdx.x) % lanes, groups = kMeanThreads / lanes;
  const int64_t run = blockIdx.x * static_cast<int64_t>(groups * kBlocksTogether) + threadIdx.x / lanes;
  const T* const summaries = static_cast<const T*>(p.summaries) + (head * p.blocks + p.first_block) * size;
  const T* of[kBlocksTogether];
#pragma unroll
  for (int j = 0; j < kBlocksTogether; ++j) {  // beyond the last: the last again
    const int64_t block = run + j * groups;
    of[j] = summaries + (block < p.count ? block : p.count - 1) * size;
  }
  float sums[kBlocksTogether] = {};
  for (int64_t column = lane * kChunk; column < size; column += lanes * kChunk) {
    const int count = chunk_count(size, column);
    float part[kChunk], keys[kBlocksTogether][kChunk];
    if (aligned.summaries && count == kChunk) {  // apart, so that all loads are under way at once
#pragma unroll
      for (int j = 0; j < kBlocksTogether; ++j) load_chunk(of[j] + column, kChunk, true, keys[j]);
    } else {
#pragma unroll
      for (int j = 0; j < kBlocksTogether; ++j) load_chunk(of[j] + column, count, false, keys[j]);
    }
    load_chunk(p.workspace + head * size + column, count, aligned.parts, part);
#pragma unroll
    for (int j = 0; j < kBlocksTogether; ++j) {
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sums[j] = fmaf(part[i], keys[j][i], sums[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kBlocksTogether; ++j) {
    for (int apart = lanes / 2; apart > 0; apart /= 2) sums[j] += __shfl_xor_sync(0xffffffff, sums[j], apart);
    const int64_t block = run + j * groups;
    if (lane == 0 && block < p.count) p.scores[head * p.count + block] = sums[j];
  }
}

// ---- score_blocks, query by query -----------------------------------------------------------------------------------

constexpr int kRowThreads = 256;
constexpr int kTileBlocks = 64, kTileRows = 64, kTileStep = 16;  // of dimensions
constexpr int kEach = 4;                                         // blocks, and rows, of a thread
constexpr int kAcross = kTileBlocks / kEach;
static_assert(kAcross * (kTileRows / kEach) == kRowThreads);
static_assert(kTileStep == 2 * kChunk && kTileBlocks * 2 * 2 == kRowThreads);  // a chunk of keys a thread

struct RowsTile {  // in shared memory, transposed: what is written at once lies in different banks
  float keys[kTileStep][2][kTileBlocks];
  float queries[kTileStep][kTileRows];
  float reduced[kTileRows / kEach][kTileBlocks];
};

// The rows that are reduced together: for the mean all of a group's, for the largest those of one head.
struct RowsPart {
  int first_head, heads, rows;
  __device__ int64_t element(const ScoreBlocksParams& p, int row) const {
    return row / heads * p.q_stride + (first_head + row % heads) * p.head_dim;
  }
};

__device__ void fill_tile(const ScoreBlocksParams& p, const RowsPart& part, int first_row, int64_t first_block,
                          int column, bool q_aligned, bool k_aligned, RowsTile& tile) {
  const auto thread = static_cast<int>(threadIdx.x), place = thread % kTileBlocks, which = thread / kTileBlocks;
  float values[kChunk];
  {  // lanes take neighbouring blocks
    const int64_t block = first_block + place, head = blockIdx.y;
    const int half = which % 2, offset = which / 2 * kChunk;
    const int64_t row = (head * p.blocks + p.first_block + block) * 2 + half;
    load_chunk(p.k_type, p.summaries, row * p.head_dim + column + offset,
               block < p.count ? chunk_count(p.head_dim, column + offset) : 0, k_aligned, values);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) tile.keys[offset + i][half][place] = values[i];
  }
  if (which < 2) {
    const int row = first_row + place, offset = which * kChunk;
    load_chunk(p.type, p.q, part.element(p, row) + column + offset,
               row < part.rows ? chunk_count(p.head_dim, column + offset) : 0, q_aligned, values);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) tile.queries[offset + i][place] = values[i];
  }
}

// Adds to the products of this thread's rows with the largest and the least of its blocks.
template <BlockScore kScore>
__device__ void multiply_tile(const RowsTile& tile, float (&most)[kEach][kEach], float (&least)[kEach][kEach]) {
  const auto across = static_cast<int>(threadIdx.x) % kAcross, down = static_cast<int>(threadIdx.x) / kAcross;
#pragma unroll
  for (int k = 0; k < kTileStep; ++k) {
    float q[kEach], largest[kEach], smallest[kEach];
    *reinterpret_cast<float4*>(q) = *reinterpret_cast<const float4*>(&tile.queries[k][down * kEach]);
    *reinterpret_cast<float4*>(largest) = *reinterpret_cast<const float4*>(&tile.keys[k][0][across * kEach]);
    *reinterpret_cast<float4*>(smallest) = *reinterpret_cast<const float4*>(&tile.keys[k][1][across * kEach]);
#pragma unroll
    for (int row = 0; row < kEach; ++row) {
      const float positive = kScore == BlockScore::kQuest ? fmaxf(q[row], 0.0f) : q[row];
      const float negative = kScore == BlockScore::kQuest ? fminf(q[row], 0.0f) : q[row];
#pragma unroll
      for (int block = 0; block < kEach; ++block) {
        most[row][block] = fmaf(positive, largest[block], most[row][block]);
        least[row][block] = fmaf(negative, smallest[block], least[row][block]);
      }
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
  float total = 0.0f;  // of block `thread`
  for (int n = 0; n < parts; ++n) {
    const int heads = mean ? group : 1;
    const RowsPart part{first_head + n, heads, heads * static_cast<int>(p.queries)};
    float reduced[kEach];
#pragma unroll
    for (int block = 0; block < kEach; ++block) reduced[block] = mean ? 0.0f : -INFINITY;
    for (int first_row = 0; first_row < part.rows; first_row += kTileRows) {
      float most[kEach][kEach] = {}, least[kEach][kEach] = {};
      for (int column = 0; column < dim; column += kTileStep) {
        __syncthreads();
        fill_tile(p, part, first_row, first_block, column, q_aligned, k_aligned, tile);
        __syncthreads();
        multiply_tile<kScore>(tile, most, least);
      }
#pragma unroll
      for (int row = 0; row < kEach; ++row) {
        if (first_row + down * kEach + row >= part.rows) continue;
#pragma unroll
        for (int block = 0; block < kEach; ++block) {
          const float score = kScore == BlockScore::kQuest ? most[row][block] + least[row][block]
                                                           : fmaxf(most[row][block], least[row][block]);
          reduced[block] = mean ? reduced[block] + score : fmaxf(reduced[block], score);
        }
      }
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

// Lanes that share a summary: as many as it has chunks, up to a warp.
int summary_lanes(int64_t head_dim) {
  int lanes = 1;
  while (lanes < 32 && lanes * kChunk < 2 * head_dim) lanes *= 2;
  return lanes;
}

template <typename T>
void launch_score_means(const ScoreBlocksParams& params, CudaStream& stream) {
  const int lanes = summary_lanes(params.head_dim);
  const MeansAligned aligned = {chunks_aligned(params.summaries, params.k_type, 2 * params.head_dim),
                                chunks_aligned(params.workspace, DType::kF32, 2 * params.head_dim)};
  const int64_t together = kMeanThreads / lanes * kBlocksTogether;
  launch_on(stream, "score_means", {ceil_div(params.count, together), params.kv_heads, kMeanThreads},
            score_means_kernel<T>, params, aligned, lanes);
}

template <typename T>
void launch_summarise(const SummariseBlocksParams& params, CudaStream& stream) {
  const bool aligned = chunks_aligned(params.k, params.k_type, params.head_dim) &&
                       chunks_aligned(params.k, params.k_type, params.k_layer_stride) &&
                       chunks_aligned(params.summaries, params.k_type, params.head_dim);
  const int64_t work = params.count * ceil_div(params.head_dim, kChunk);
  CHECK(work <= INT32_MAX, "count=", params.count);
  launch_on(stream, "summarise_blocks",
            {ceil_div(work, kSummaryThreads), params.layers * params.kv_heads, kSummaryThreads}, summarise_kernel<T>,
            params, aligned);
}

}  // namespace

void summarise_blocks(const SummariseBlocksParams& params, Stream& stream) {
  switch (params.k_type) {
    case DType::kF32:
      return launch_summarise<float>(params, cuda_stream(stream));
    case DType::kF16:
      return launch_summarise<__half>(params, cuda_stream(stream));
    case DType::kBF16:
      return launch_summarise<__nv_bfloat16>(params, cuda_stream(stream));
  }
}

void score_blocks(const ScoreBlocksParams& params, Stream& stream) {
  CudaStream& native = cuda_stream(stream);
  const bool q_aligned =
      chunks_aligned(params.q, params.type, params.q_stride) && chunks_aligned(params.q, params.type, params.head_dim);
  if (params.score == BlockScore::kQuest && params.reduce == BlockReduce::kMean) {
    launch_on(native, "mean_parts", {params.kv_heads, 1, kPartThreads}, mean_parts_kernel, params, q_aligned);
    switch (params.k_type) {
      case DType::kF32:
        return launch_score_means<float>(params, native);
      case DType::kF16:
        return launch_score_means<__half>(params, native);
      case DType::kBF16:
        return launch_score_means<__nv_bfloat16>(params, native);
    }
  }
  const bool k_aligned = chunks_aligned(params.summaries, params.k_type, params.head_dim);
  launch_on(native, "score_rows", {ceil_div(params.count, kTileBlocks), params.kv_heads, kRowThreads},
            params.score == BlockScore::kQuest ? score_rows_kernel<BlockScore::kQuest>
                                               : score_rows_kernel<BlockScore::kSpecPv>,
            params, q_aligned, k_aligned);
}

}  // namespace headrace::kernels::cuda
