// The first half of the chunk form: what the walk over chunks (chunks.cu) multiplies with, for all chunks at once. One
// kernel splits k and q into fragments for each key head. Another makes, for each value head, T, the inverse of I + L,
// and the weights of o. Sums over k_dim are on tensor cores, T is made in f32: every sum there is one chain of fused
// multiply-adds in ascending order.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/recurrence/chunk_layout.cuh"
#include "kernels/recurrence/cuda.cuh"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;

// ---- Fragments of k and q -------------------------------------------------------------------------------------------

// A stride of 8 banks: a lane's pairs of neighbouring rows do not meet.
constexpr int kSplitStride = static_cast<int>(kMaxDeltaKeyDim) + 8;

// Rows of k or q; zeros behind k_dim.
__device__ void load_rows(const DeltaChunksParams& p, const float* from, int64_t first, float* rows) {
  const int padded = 16 * static_cast<int>(dim_tiles(p.shape));
  for (int i = static_cast<int>(threadIdx.x); i < kRows * padded / 4; i += kThreads) {
    const int row = i / (padded / 4), dim = i % (padded / 4) * 4;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    *reinterpret_cast<float4*>(rows + row * kSplitStride + dim) =
        dim < p.shape.k_dim ? *reinterpret_cast<const float4*>(from + first + row * k_width(p.shape) + dim) : none;
  }
}

// The fragment at (row, dim) of [rows, kSplitStride], or of its transpose.
template <bool kTransposed>
__device__ Fragment fragment_of(const float* rows, int row, int dim, int lane) {
  const int g = lane / 4, t = lane % 4 * 2;
  Fragment fragment;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const int down = g + word % 2 * 8, right = t + word / 2 * 8;
    const float* const first = kTransposed ? rows + (row + right) * kSplitStride + dim + down
                                           : rows + (row + down) * kSplitStride + dim + right;
    fragment.set(word, first[0], first[kTransposed ? kSplitStride : 1]);
  }
  return fragment;
}

// Grid: chunks x key heads.
__global__ void __launch_bounds__(kThreads) delta_split_kernel(DeltaChunksParams p) {
  __shared__ __align__(16) float rows[kRows * kSplitStride];
  const int64_t chunk = blockIdx.x, head = blockIdx.y;
  const int64_t first = chunk * kRows * k_width(p.shape) + head * p.shape.k_dim;
  const KeyMatrices to = key_matrices(p, chunk, head);
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int tiles = static_cast<int>(dim_tiles(p.shape));
  load_rows(p, p.k, first, rows);
  __syncthreads();
  for (int i = warp; i < kRowTiles * tiles; i += kWarps) {
    const int row = i / tiles, dim = i % tiles;
    fragment_of<false>(rows, 16 * row, 16 * dim, lane).store(to.k, i, lane);
    fragment_of<true>(rows, 16 * row, 16 * dim, lane).store(to.transposed, dim * kRowTiles + row, lane);
  }
  __syncthreads();
  load_rows(p, p.q, first, rows);
  __syncthreads();
  for (int i = warp; i < kRowTiles * tiles; i += kWarps) {
    fragment_of<false>(rows, 16 * (i / tiles), 16 * (i % tiles), lane).store(to.q, i, lane);
  }
}

// ---- T and the weights ----------------------------------------------------------------------------------------------

constexpr int kMatrixStride = kRows + 4;
struct MatrixRoom {
  double sums[kRows];                    // G
  float lower[kRows * kMatrixStride];    // L
  float inverse[kRows * kMatrixStride];  // T, with intermediate products above its diagonal
};

// exp(a - b) for sums a of a later row: at most 1.
__device__ float decay(double later, double earlier) { return expf(static_cast<float>(fmin(later - earlier, 0.0))); }

// G of the chunk's rows, by the first warp: doubling steps over the lanes, for both halves of the rows. In double,
// since the difference of two large sums may be the small decay of one token.
__device__ void sum_decays(const DeltaChunksParams& p, int64_t chunk, int64_t head, double (&sums)[kRows]) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  const float* const g = p.g + chunk * kRows * p.shape.v_heads + head;
  double low = static_cast<double>(g[lane * p.shape.v_heads]);
  double high = static_cast<double>(g[(lane + 32) * p.shape.v_heads]);
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const double low_before = __shfl_up_sync(kAllLanes, low, static_cast<unsigned>(apart));
    const double high_before = __shfl_up_sync(kAllLanes, high, static_cast<unsigned>(apart));
    if (lane >= apart) low += low_before, high += high_before;
  }
  high += __shfl_sync(kAllLanes, low, 31);
  sums[lane] = low;
  sums[lane + 32] = high;
}

// k k^T and q k^T of 16 rows and 32 columns: a warp's part.
struct Dots {
  float kk[4][4], qk[4][4];
};
__device__ void multiply_keys(const KeyMatrices& from, int tiles, int row, int half, int lane, Dots& dots) {
#pragma unroll 2
  for (int dim = 0; dim < tiles; ++dim) {
    Fragment k, q;
    k.load(from.k, row * tiles + dim, lane);
    q.load(from.q, row * tiles + dim, lane);
    uint32_t hi[4][2], lo[4][2];
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      Fragment columns;  // 16 rows of k; as columns they are two tiles of 8
      columns.load(from.k, (2 * half + pair) * tiles + dim, lane);
#pragma unroll
      for (int word = 0; word < 4; ++word) {
        hi[2 * pair + word % 2][word / 2] = columns.hi[word];
        lo[2 * pair + word % 2][word / 2] = columns.lo[word];
      }
    }
    multiply_pairs(dots.kk, k, hi, lo);
    multiply_pairs(dots.qk, q, hi, lo);
  }
}

// L to shared memory, and the weights' fragments.
__device__ void scale_dots(const DeltaChunksParams& p, const ValueMatrices& to, int64_t first_scalar, int row_tile,
                           int half, int lane, Dots& dots, MatrixRoom& room) {
  const int g = lane / 4, t = lane % 4 * 2;
#pragma unroll
  for (int down = 0; down < 2; ++down) {
    const int row = 16 * row_tile + g + 8 * down;
    const float beta = p.beta[first_scalar + row * p.shape.v_heads];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int right = 0; right < 2; ++right) {
        const int column = 32 * half + 8 * n + t + right;
        const float factor = decay(room.sums[row], room.sums[column]);
        float& weight = dots.qk[n][2 * down + right];
        weight = column <= row ? weight * factor : 0.0f;
        room.lower[row * kMatrixStride + column] = column < row ? beta * (dots.kk[n][2 * down + right] * factor) : 0.0f;
      }
    }
  }
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    if (2 * half + pair > row_tile) continue;
    Fragment weights;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float(&of)[4] = dots.qk[2 * pair + word / 2];
      weights.set(word, of[word % 2 * 2], of[word % 2 * 2 + 1]);
    }
    weights.store(to.weights, row_tile * kRowTiles + 2 * half + pair, lane);
  }
}

// T = (I + L)^-1 by blocks, [[A, 0], [B, C]]^-1 = [[A^-1, 0], [-C^-1 B A^-1, C^-1]]: first of 16 rows, a column a lane.
__device__ void invert_diagonal(int block, int lane, MatrixRoom& room) {
  if (lane >= 16) return;
  const int first = 16 * block * (kMatrixStride + 1);  // of the block
  float t[16];
#pragma unroll
  for (int row = 0; row < 16; ++row) {
    float sum = 0.0f;
#pragma unroll
    for (int m = 0; m < row; ++m) sum = fmaf(room.lower[first + row * kMatrixStride + m], t[m], sum);
    t[row] = (row == lane ? 1.0f : 0.0f) - sum;
    room.inverse[first + row * kMatrixStride + lane] = t[row];
  }
}

// Joins inverses of kSize rows: B A^-1 goes above the diagonal, where nothing else is read, then -C^-1 (B A^-1) to its
// place. A column of A^-1 has zeros above its diagonal and a row of C^-1 behind it, by blocks of 16: they are skipped.
template <int kSize>
__device__ void join_inverses(MatrixRoom& room) {
  constexpr int kBlocks = kRows / (2 * kSize), kElements = kBlocks * kSize * kSize;
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kElements; i += kThreads) {
    const int first = i / (kSize * kSize) * 2 * kSize, row = i / kSize % kSize, column = i % kSize;
    float sum = 0.0f;
    for (int m = column / 16 * 16; m < kSize; ++m) {
      sum = fmaf(room.lower[(first + kSize + row) * kMatrixStride + first + m],
                 room.inverse[(first + m) * kMatrixStride + first + column], sum);
    }
    room.inverse[(first + row) * kMatrixStride + first + kSize + column] = sum;
  }
  __syncthreads();
#pragma unroll
  for (int i = static_cast<int>(threadIdx.x); i < kElements; i += kThreads) {
    const int first = i / (kSize * kSize) * 2 * kSize, row = i / kSize % kSize, column = i % kSize;
    float sum = 0.0f;
    for (int m = 0; m < row / 16 * 16 + 16; ++m) {
      sum = fmaf(room.inverse[(first + kSize + row) * kMatrixStride + first + kSize + m],
                 room.inverse[(first + m) * kMatrixStride + first + kSize + column], sum);
    }
    room.inverse[(first + kSize + row) * kMatrixStride + first + column] = -sum;
  }
  __syncthreads();
}

__device__ void store_inverse(const ValueMatrices& to, int warp, int lane, const MatrixRoom& room) {
  const int g = lane / 4, t = lane % 4 * 2;
  for (int i = warp; i < kRowTiles * kRowTiles; i += kWarps) {
    const int row = i / kRowTiles, column = i % kRowTiles;
    if (column > row) continue;
    Fragment fragment;
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const float* const first =
          room.inverse + (16 * row + g + word % 2 * 8) * kMatrixStride + 16 * column + t + word / 2 * 8;
      fragment.set(word, first[0], first[1]);
    }
    fragment.store(to.inverse, i, lane);
  }
}

// Grid: chunks x value heads.
__global__ void __launch_bounds__(kThreads) delta_matrices_kernel(DeltaChunksParams p) {
  __shared__ __align__(16) MatrixRoom room;
  const int64_t chunk = blockIdx.x, head = blockIdx.y;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const int row_tile = warp % kRowTiles, half = warp / kRowTiles;
  const ValueMatrices to = value_matrices(p, chunk, head);
  sum_decays(p, chunk, head, room.sums);
  Dots dots = {};
  if (2 * half <= row_tile) {
    multiply_keys(key_matrices(p, chunk, key_head(p.shape, head)), static_cast<int>(dim_tiles(p.shape)), row_tile, half,
                  lane, dots);
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    to.grown[threadIdx.x] = expf(static_cast<float>(room.sums[threadIdx.x]));
    to.left[threadIdx.x] = decay(room.sums[kRows - 1], room.sums[threadIdx.x]);
  }
  scale_dots(p, to, chunk * kRows * p.shape.v_heads + head, row_tile, half, lane, dots, room);
  __syncthreads();
  if (warp < kRowTiles) invert_diagonal(warp, lane, room);
  __syncthreads();
  join_inverses<16>(room);
  join_inverses<32>(room);
  store_inverse(to, warp, lane, room);
}

}  // namespace

void delta_chunk_matrices(const DeltaChunksParams& params, Stream& stream) {
  const int64_t chunks = params.rows / kRows;
  launch_on(cuda_stream(stream), "delta_split", {chunks, params.shape.k_heads, kThreads}, delta_split_kernel, params);
  launch_on(cuda_stream(stream), "delta_matrices", {chunks, params.shape.v_heads, kThreads}, delta_matrices_kernel,
            params);
}

}  // namespace headrace::kernels::cuda
