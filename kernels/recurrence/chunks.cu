// The chunk form (chunks_isa.cc has its formulas). chunk_matrices.cu makes T = (I + L)^-1 and the weights of o, for all
// chunks at once. The kernel here walks the chunks, a block with 64 columns of a value head's state:
//
//   R_i = beta_i (v_i - exp(G_i) S^T k_i);  D = T R;  o_i = exp(G_i) S^T q_i + (weights D)_i;
//   S <- exp(G_n) S + sum over j of exp(G_n - G_j) k_j D_j^T
//
// S stays in registers in f32, 16 of its rows in a warp. What is multiplied is two bf16 for a float
// (chunk_layout.cuh), on tensor cores with f32 sums. T's elements are at most 1 by magnitude where k has norm 1: they
// are k_i^T (a product of contractions) k_j.
#include "kernels/cuda/launch.cuh"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/chunk_layout.cuh"
#include "kernels/recurrence/cuda.cuh"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kSlice = 64, kTiles = kSlice / 8;  // columns of a block, in tiles
static_assert(16 * kWarps >= kMaxDeltaKeyDim);   // a warp has a tile of S's rows
static_assert(kWarps == 2 * kRowTiles);          // and half of the columns of a tile of tokens

// A matrix of [rows, kSlice] in shared memory, hi and lo. A row has eight units of 16 bytes; unit u is at u ^ (row %
// 8), so that eight rows' units do not meet in a bank.
constexpr int kRowBytes = kSlice * 2;
struct Matrix {
  uint32_t hi;    // shared memory
  uint32_t size;  // of hi; lo follows

  __device__ void store(int row, int tile, int pair, float first, float second) const {
    const uint32_t at = hi + static_cast<uint32_t>(row * kRowBytes + ((tile ^ row % 8) * 16) + pair * 4);
    const Pair both = split(first, second);
    store_word(at, static_cast<int>(both.hi));
    store_word(at + size, static_cast<int>(both.lo));
  }
  // b of 16 rows from `row` on and kCount tiles of columns from `tile` on. kCount is even.
  template <int kCount>
  __device__ void load(int row, int tile, int lane, uint32_t (&hi_words)[kCount][2],
                       uint32_t (&lo_words)[kCount][2]) const {
    const int own = row + lane % 16;
#pragma unroll
    for (int n = 0; n < kCount; n += 2) {
      const uint32_t at = hi + static_cast<uint32_t>(own * kRowBytes + (((tile + n + lane / 16) ^ own % 8) * 16));
      uint32_t words[4];
      load_transposed(words, at);
      hi_words[n][0] = words[0], hi_words[n][1] = words[1], hi_words[n + 1][0] = words[2],
      hi_words[n + 1][1] = words[3];
      load_transposed(words, at + size);
      lo_words[n][0] = words[0], lo_words[n][1] = words[1], lo_words[n + 1][0] = words[2],
      lo_words[n + 1][1] = words[3];
    }
  }
};

constexpr uint32_t kStateBytes = kMaxDeltaKeyDim * kRowBytes, kTokenBytes = kRows * kRowBytes;
constexpr int kWalkBytes = static_cast<int>(2 * kStateBytes + 3 * 2 * kTokenBytes);
static_assert(kWalkBytes <= 99 * 1024);

// A lane of a warp: with g = lane / 4 and t = lane % 4 it has, of tokens, rows g and g + 8 of tile `row_tile` and
// columns 2t and 2t + 1 of the four tiles from 4 half on; of S, rows g and g + 8 of tile `dim_tile` and the same
// columns of all tiles.
struct Place {
  int64_t head, first_column;
  int lane, g, t, row_tile, half, dim_tile;
};

// The first fragments of k and q, which are loaded ahead of the chunk's work. All fragments are read from the L2 cache,
// whose latency a block of eight warps hides only if many loads are in flight.
constexpr int kAhead = 3;
struct FirstFragments {
  Fragment k[kAhead], q[kAhead];
};

// A lane's values of the chunk's tokens, and the warp's rows of T.
struct Loaded {
  float2 v[4][2];
  float beta[2], grown[2], left[2];
  float keep;  // exp(G_n)
  Fragment inverse[kRowTiles];
};

struct Walk {
  const DeltaChunksParams& p;
  const Place at;
  const Matrix state, right, d, left;

  __device__ bool inside(int tile) const { return at.first_column + 8 * tile < p.shape.v_dim; }
  __device__ int row(int down) const { return 16 * at.row_tile + at.g + 8 * down; }
  __device__ int64_t value(int64_t first_row, int down) const {
    return (first_row + row(down)) * p.shape.v_heads + at.head;
  }
  __device__ int64_t column(int tile) const { return at.first_column + 8 * tile + 2 * at.t; }
  __device__ KeyMatrices keys(int64_t chunk) const { return key_matrices(p, chunk, key_head(p.shape, at.head)); }

  __device__ void load(int64_t chunk, FirstFragments& first) const {
    const KeyMatrices from = keys(chunk);
    const int tiles = static_cast<int>(dim_tiles(p.shape));
#pragma unroll
    for (int dim = 0; dim < kAhead; ++dim) {
      if (dim >= tiles) break;
      first.k[dim].load(from.k, at.row_tile * tiles + dim, at.lane);
      first.q[dim].load(from.q, at.row_tile * tiles + dim, at.lane);
    }
  }
  __device__ void load(int64_t chunk, Loaded& loaded) const {
    const ValueMatrices values = value_matrices(p, chunk, at.head);
    const float2 none = {0.0f, 0.0f};
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const int64_t of_row = value(chunk * kRows, down);
      loaded.grown[down] = values.grown[row(down)];
      loaded.left[down] = values.left[row(down)];
      loaded.beta[down] = p.beta[of_row];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int tile = 4 * at.half + n;
        loaded.v[n][down] =
            inside(tile) ? *reinterpret_cast<const float2*>(p.v + of_row * p.shape.v_dim + column(tile)) : none;
      }
    }
    loaded.keep = values.grown[kRows - 1];
    load_lower(values.inverse, loaded.inverse);
  }
  // The warp's rows of a lower triangular matrix.
  __device__ void load_lower(const uint4* matrix, Fragment (&fragments)[kRowTiles]) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (tile <= at.row_tile) fragments[tile].load(matrix, at.row_tile * kRowTiles + tile, at.lane);
    }
  }

  // S^T k and S^T q of the warp's tokens.
  __device__ void see(const KeyMatrices& from, FirstFragments& next, float (&of_k)[4][4], float (&of_q)[4][4]) const {
    constexpr int kMost = static_cast<int>(kMaxDeltaKeyDim) / 16;
    const int tiles = static_cast<int>(dim_tiles(p.shape));
#pragma unroll
    for (int dim = 0; dim < kMost; ++dim) {
      if (dim >= tiles) break;
      uint32_t hi[4][2], lo[4][2];
      state.load(16 * dim, 4 * at.half, at.lane, hi, lo);
      multiply_pairs(of_k, next.k[dim % kAhead], hi, lo);
      multiply_pairs(of_q, next.q[dim % kAhead], hi, lo);
      if (dim + kAhead < tiles) {
        next.k[dim % kAhead].load(from.k, at.row_tile * tiles + dim + kAhead, at.lane);
        next.q[dim % kAhead].load(from.q, at.row_tile * tiles + dim + kAhead, at.lane);
      }
    }
  }

  // R of the warp's tokens, from S^T k.
  __device__ void right_sides(const Loaded& loaded, const float (&seen)[4][4]) const {
#pragma unroll
    for (int down = 0; down < 2; ++down) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        right.store(row(down), 4 * at.half + n, at.t,
                    loaded.beta[down] * (loaded.v[n][down].x - loaded.grown[down] * seen[n][2 * down]),
                    loaded.beta[down] * (loaded.v[n][down].y - loaded.grown[down] * seen[n][2 * down + 1]));
      }
    }
  }

  // c += matrix x for the warp's tokens; the matrix is lower triangular.
  __device__ void multiply_lower(const Fragment (&matrix)[kRowTiles], const Matrix& x, float (&c)[4][4]) const {
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (tile > at.row_tile) break;
      uint32_t hi[4][2], lo[4][2];
      x.load(16 * tile, 4 * at.half, at.lane, hi, lo);
      multiply_pairs(c, matrix[tile], hi, lo);
    }
  }

  // D, and D times exp(G_n - G_i).
  __device__ void solve(const Loaded& loaded) const {
    float c[4][4] = {};
    multiply_lower(loaded.inverse, right, c);
#pragma unroll
    for (int down = 0; down < 2; ++down) {
      const float factor = loaded.left[down];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const float first = c[n][2 * down], second = c[n][2 * down + 1];
        d.store(row(down), 4 * at.half + n, at.t, first, second);
        left.store(row(down), 4 * at.half + n, at.t, factor * first, factor * second);
      }
    }
  }

  __device__ void outputs(int64_t first_row, const Fragment (&weights)[kRowTiles], const Loaded& loaded,
                          float (&c)[4][4]) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) c[n][i] *= loaded.grown[i / 2];
    }
    multiply_lower(weights, d, c);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (!inside(4 * at.half + n)) continue;
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        *reinterpret_cast<float2*>(p.o + value(first_row, down) * p.shape.v_dim + column(4 * at.half + n)) = {
            c[n][2 * down], c[n][2 * down + 1]};
      }
    }
  }

  __device__ void move_state(const Fragment (&transposed)[kRowTiles], float keep, float (&s)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= keep;
    }
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      uint32_t hi[kTiles][2], lo[kTiles][2];
      left.load(16 * tile, 0, at.lane, hi, lo);
      multiply_pairs(s, transposed[tile], hi, lo);
    }
  }

  __device__ void share_state(const float (&s)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        state.store(16 * at.dim_tile + at.g + 8 * down, n, at.t, s[n][2 * down], s[n][2 * down + 1]);
      }
    }
  }

  // `first`: the chunk's, then those of the next one.
  __device__ void chunk(int64_t index, bool last, FirstFragments& first, float (&s)[kTiles][4]) const {
    const KeyMatrices from = keys(index);
    const bool has_state = at.dim_tile < dim_tiles(p.shape);
    Loaded loaded;
    load(index, loaded);
    float of_k[4][4] = {}, of_q[4][4] = {};
    see(from, first, of_k, of_q);
    Fragment weights[kRowTiles], transposed[kRowTiles];
    load_lower(value_matrices(p, index, at.head).weights, weights);
#pragma unroll
    for (int tile = 0; tile < kRowTiles; ++tile) {
      if (has_state) transposed[tile].load(from.transposed, at.dim_tile * kRowTiles + tile, at.lane);
    }
    right_sides(loaded, of_k);
    __syncthreads();
    solve(loaded);
    if (!last) load(index + 1, first);
    __syncthreads();
    if (has_state) {
      move_state(transposed, loaded.keep, s);
      share_state(s);
    }
    outputs(index * kRows, weights, loaded, of_q);
    __syncthreads();
  }

  // From or to global memory.
  template <bool kStore>
  __device__ void copy_state(float (&s)[kTiles][4]) const {
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
#pragma unroll
      for (int down = 0; down < 2; ++down) {
        const int64_t dim = 16 * at.dim_tile + at.g + 8 * down;
        if (!inside(n) || dim >= p.shape.k_dim) continue;
        float2& place =
            *reinterpret_cast<float2*>(p.state + (at.head * p.shape.k_dim + dim) * p.shape.v_dim + column(n));
        if constexpr (kStore) {
          place = {s[n][2 * down], s[n][2 * down + 1]};
        } else {
          s[n][2 * down] = place.x, s[n][2 * down + 1] = place.y;
        }
      }
    }
  }
};

// Grid: value heads x slices of columns.
__global__ void __launch_bounds__(kThreads, 1) delta_walk_kernel(DeltaChunksParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  const uint32_t memory = shared_address(shared), tokens = memory + 2 * kStateBytes;
  const int lane = static_cast<int>(threadIdx.x % 32), warp = static_cast<int>(threadIdx.x / 32);
  const Walk walk = {p,
                     {blockIdx.x, static_cast<int64_t>(blockIdx.y) * kSlice, lane, lane / 4, lane % 4, warp % kRowTiles,
                      warp / kRowTiles, warp},
                     {memory, kStateBytes},
                     {tokens, kTokenBytes},
                     {tokens + 2 * kTokenBytes, kTokenBytes},
                     {tokens + 4 * kTokenBytes, kTokenBytes}};
  FirstFragments first;
  walk.load(0, first);
  float s[kTiles][4] = {};
  walk.copy_state<false>(s);
  if (warp < dim_tiles(p.shape)) walk.share_state(s);
  __syncthreads();
  const int64_t chunks = p.rows / kRows;
#pragma unroll 1
  for (int64_t chunk = 0; chunk < chunks; ++chunk) walk.chunk(chunk, chunk + 1 == chunks, first, s);
  walk.copy_state<true>(s);
}

}  // namespace

void delta_chunks(const DeltaChunksParams& params, Stream& stream) {
  const DeltaShape& shape = params.shape;
  if (params.rows >= kRows) {
    delta_chunk_matrices(params, stream);
    launch_on(cuda_stream(stream), "delta_walk", {shape.v_heads, ceil_div(shape.v_dim, kSlice), kThreads, kWalkBytes},
              delta_walk_kernel, params);
  }
  delta_remainder(params, stream);
}

}  // namespace headrace::kernels::cuda
