// The chunk form (chunks_isa.cc has its formulas), in f32. A first kernel makes two matrices for each chunk and value
// head, all at once: T, the inverse of I + L, and the weights of o. A second one walks the chunks, a block with a value
// head's state for 32 of its columns in shared memory:
//
//   R_i = beta_i (v_i - exp(G_i) S^T k_i);  D = T R;  o_i = exp(G_i) S^T q_i + (weights D)_i;
//   S <- exp(G_n) S + sum over j of exp(G_n - G_j) k_j D_j^T
//
// T's elements are at most 1 by magnitude where k has norm 1: they are k_i^T (a product of contractions) k_j. Every sum
// is one chain of fused multiply-adds in ascending order, unless a comment has another.
#include <cstddef>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/recurrence/bodies.h"
#include "kernels/recurrence/cuda.cuh"
#include "kernels/recurrence/shape.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kRows = static_cast<int>(kDeltaChunkRows), kMatrix = kRows * kRows;
static_assert(kRows == 64);

__device__ float* matrices_of(const DeltaChunksParams& p, int64_t chunk, int64_t head) {
  return static_cast<float*>(p.scratch) + (chunk * p.shape.v_heads + head) * 2 * kMatrix;
}

__device__ float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }

// exp(a - b) for sums a of a later row: at most 1.
__device__ float decay(double later, double earlier) { return expf(static_cast<float>(fmin(later - earlier, 0.0))); }

// G of the chunk's rows, by the first warp: doubling steps over the lanes, for both halves of the rows. In double,
// since the difference of two large sums may be the small decay of one token. The caller synchronises.
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

// ---- The matrices ---------------------------------------------------------------------------------------------------

constexpr int kTileDims = 32, kTileStride = kTileDims + 4;  // a stride of 4 banks: float4s of neighbouring rows
constexpr int kLowerStride = kRows + 1, kInverseStride = kRows + 8;

struct MatrixRoom {
  double sums[kRows];
  float lower[kRows * kLowerStride];  // L
  union {
    struct {
      float k[kRows * kTileStride], q[kRows * kTileStride];
    } tile;
    float inverse[kRows * kInverseStride];  // T
  };
};

__device__ float dot_four(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}

// Thread (x, y) of 16 x 16 has rows y + 16 i and columns x + 16 j of k k^T and q k^T.
struct Dots {
  float kk[4][4], qk[4][4];
};
__device__ void multiply_tile(const MatrixRoom& room, int x, int y, Dots& dots) {
  for (int dim = 0; dim < kTileDims; dim += 4) {
    float4 columns[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) columns[j] = load_four(room.tile.k + (x + 16 * j) * kTileStride + dim);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float4 k = load_four(room.tile.k + (y + 16 * i) * kTileStride + dim);
      const float4 q = load_four(room.tile.q + (y + 16 * i) * kTileStride + dim);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        dots.kk[i][j] = dot_four(k, columns[j], dots.kk[i][j]);
        dots.qk[i][j] = dot_four(q, columns[j], dots.qk[i][j]);
      }
    }
  }
}

__device__ void load_tile(const DeltaChunksParams& p, int64_t first_row, int64_t key, int64_t dim, MatrixRoom& room) {
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kTileDims / 4; i += kThreads) {
    const int row = i / (kTileDims / 4), four = i % (kTileDims / 4) * 4;
    const bool there = dim + four < p.shape.k_dim;
    const int64_t from = (first_row + row) * k_width(p.shape) + key + dim + four;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    *reinterpret_cast<float4*>(room.tile.k + row * kTileStride + four) = there ? load_four(p.k + from) : none;
    *reinterpret_cast<float4*>(room.tile.q + row * kTileStride + four) = there ? load_four(p.q + from) : none;
  }
}

// T = (I + L)^-1, row by row: T_i = e_i - sum over m < i of L_im T_m. Four lanes have a column, each every fourth m.
__device__ void invert(MatrixRoom& room) {
  const int column = static_cast<int>(threadIdx.x) / 4, part = static_cast<int>(threadIdx.x) % 4;
  for (int row = 0; row < kRows; ++row) {
    float sum = 0.0f;
    for (int m = part; m < row; m += 4) {
      sum = fmaf(room.lower[row * kLowerStride + m], room.inverse[m * kInverseStride + column], sum);
    }
    sum = quad_sum(sum);
    if (part == 0) room.inverse[row * kInverseStride + column] = (row == column ? 1.0f : 0.0f) - sum;
    __syncwarp();  // a column's lanes are of one warp
  }
}

// Grid: chunks x value heads.
__global__ void __launch_bounds__(kThreads) delta_matrices_kernel(DeltaChunksParams p) {
  __shared__ __align__(16) MatrixRoom room;
  const int64_t chunk = blockIdx.x, head = blockIdx.y, first_row = chunk * kRows;
  const int64_t key = key_head(p.shape, head) * p.shape.k_dim;
  const int x = static_cast<int>(threadIdx.x) % 16, y = static_cast<int>(threadIdx.x) / 16;
  sum_decays(p, chunk, head, room.sums);
  Dots dots = {};
  for (int64_t dim = 0; dim < p.shape.k_dim; dim += kTileDims) {
    load_tile(p, first_row, key, dim, room);
    __syncthreads();
    multiply_tile(room, x, y, dots);
    __syncthreads();
  }
  float* const inverse = matrices_of(p, chunk, head);
  float* const weights = inverse + kMatrix;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = y + 16 * i;
    const float beta = p.beta[(first_row + row) * p.shape.v_heads + head];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int column = x + 16 * j;
      const float factor = decay(room.sums[row], room.sums[column]);
      room.lower[row * kLowerStride + column] = column < row ? beta * (dots.kk[i][j] * factor) : 0.0f;
      weights[row * kRows + column] = column <= row ? dots.qk[i][j] * factor : 0.0f;
    }
  }
  __syncthreads();
  invert(room);
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < kMatrix; i += kThreads) {
    inverse[i] = room.inverse[i / kRows * kInverseStride + i % kRows];
  }
}

// ---- The walk -------------------------------------------------------------------------------------------------------

constexpr int kSlice = 32;  // columns of a block
static_assert(kThreads == kSlice / 4 * 32);

// Shared memory of a block; state: [k_dim, kSlice].
struct WalkRoom {
  double sums[kRows];
  float grown[kRows];  // exp(G_i)
  float left[kRows];   // exp(G_n - G_i)
  float right[kRows * kSlice], d[kRows * kSlice];
  float state[1];
};
__host__ __device__ constexpr int walk_bytes(int64_t k_dim) {
  return static_cast<int>(offsetof(WalkRoom, state) + sizeof(float) * static_cast<size_t>(k_dim * kSlice));
}
static_assert(offsetof(WalkRoom, state) % 16 == 0 && offsetof(WalkRoom, right) % 16 == 0);
static_assert(walk_bytes(kMaxDeltaDim) <= 99 * 1024);

// A thread's columns, four from `column` on; none if beyond v_dim, which is a multiple of 8.
struct Place {
  int64_t head, first_column, key;
  int column, group;  // group: of 32, of rows
  bool inside;
};

__device__ void add_scaled(const float4& row, float factor, float (&sums)[4]) {
  sums[0] = fmaf(factor, row.x, sums[0]);
  sums[1] = fmaf(factor, row.y, sums[1]);
  sums[2] = fmaf(factor, row.z, sums[2]);
  sums[3] = fmaf(factor, row.w, sums[3]);
}

// sums[i] += matrix^T x_i for rows x_i that follow one another. matrix: [steps, kSlice] in shared memory, from the
// thread's columns on. The rows come from global memory, and no other warp reads them: several loads are in flight
// instead.
template <int kCount>
__device__ void multiply_rows(const float* matrix, const float* rows, int64_t stride, int64_t steps,
                              float (&sums)[kCount][4]) {
#pragma unroll(8 / kCount)
  for (int64_t step = 0; step < steps; step += 4) {
    float4 x[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = load_four(rows + i * stride + step);
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float4 row = load_four(matrix + (step + u) * kSlice);
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        add_scaled(row, u == 0 ? x[i].x : u == 1 ? x[i].y : u == 2 ? x[i].z : x[i].w, sums[i]);
      }
    }
  }
}

__device__ void store_four(float* to, const float (&values)[4]) {
  *reinterpret_cast<float4*>(to) = float4{values[0], values[1], values[2], values[3]};
}

// R of the thread's four rows.
__device__ void right_sides(const DeltaChunksParams& p, int64_t first_row, const Place& place, int row,
                            const float (&seen)[4][4], WalkRoom& room) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t value = (first_row + row + i) * p.shape.v_heads + place.head;
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    const float4 v = place.inside ? load_four(p.v + value * p.shape.v_dim + place.first_column + place.column) : none;
    const float beta = p.beta[value], grown = room.grown[row + i];
    const float right[4] = {beta * (v.x - grown * seen[i][0]), beta * (v.y - grown * seen[i][1]),
                            beta * (v.z - grown * seen[i][2]), beta * (v.w - grown * seen[i][3])};
    store_four(room.right + (row + i) * kSlice + place.column, right);
  }
}

// D of two rows. T has zeros behind its diagonal.
__device__ void solve(const float* inverse, const Place& place, WalkRoom& room) {
  const int row = 2 * place.group;
  float sums[2][4] = {};
  multiply_rows(room.right + place.column, inverse + row * kRows, kRows, row / 4 * 4 + 4, sums);
#pragma unroll
  for (int i = 0; i < 2; ++i) store_four(room.d + (row + i) * kSlice + place.column, sums[i]);
}

// o of four rows, from S^T q.
__device__ void outputs(const DeltaChunksParams& p, int64_t first_row, const float* weights, const Place& place,
                        int row, float (&sums)[4][4], const WalkRoom& room) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float grown = room.grown[row + i];
#pragma unroll
    for (int c = 0; c < 4; ++c) sums[i][c] *= grown;
  }
  multiply_rows(room.d + place.column, weights + row * kRows, kRows, row + 4, sums);
  if (!place.inside) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int64_t value = (first_row + row + i) * p.shape.v_heads + place.head;
    store_four(p.o + value * p.shape.v_dim + place.first_column + place.column, sums[i]);
  }
}

// The thread's rows of S, four at a time.
__device__ void move_state(const DeltaChunksParams& p, int64_t first_row, const Place& place, WalkRoom& room) {
  const float keep = room.grown[kRows - 1];
  for (int64_t dim = 4 * place.group; dim < p.shape.k_dim; dim += 4 * (kThreads / (kSlice / 4))) {
    float sums[4][4];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float4 s = load_four(room.state + (dim + u) * kSlice + place.column);
      sums[u][0] = s.x * keep, sums[u][1] = s.y * keep, sums[u][2] = s.z * keep, sums[u][3] = s.w * keep;
    }
#pragma unroll 8
    for (int j = 0; j < kRows; ++j) {
      const float4 k = load_four(p.k + (first_row + j) * k_width(p.shape) + place.key + dim);
      const float4 d = load_four(room.d + j * kSlice + place.column);
      const float left = room.left[j];
      add_scaled(d, k.x * left, sums[0]);
      add_scaled(d, k.y * left, sums[1]);
      add_scaled(d, k.z * left, sums[2]);
      add_scaled(d, k.w * left, sums[3]);
    }
#pragma unroll
    for (int u = 0; u < 4; ++u) store_four(room.state + (dim + u) * kSlice + place.column, sums[u]);
  }
}

// Half of the threads have rows of k, the others rows of q.
__device__ void walk_chunk(const DeltaChunksParams& p, int64_t chunk, const Place& place, WalkRoom& room) {
  const int64_t first_row = chunk * kRows;
  sum_decays(p, chunk, place.head, room.sums);
  __syncthreads();
  if (threadIdx.x < kRows) {
    room.grown[threadIdx.x] = expf(static_cast<float>(room.sums[threadIdx.x]));
    room.left[threadIdx.x] = decay(room.sums[kRows - 1], room.sums[threadIdx.x]);
  }
  __syncthreads();
  const float* const inverse = matrices_of(p, chunk, place.head);
  const bool of_k = place.group < 16;
  const int row = place.group % 16 * 4;
  float sums[4][4] = {};
  multiply_rows(room.state + place.column, (of_k ? p.k : p.q) + (first_row + row) * k_width(p.shape) + place.key,
                k_width(p.shape), p.shape.k_dim, sums);
  if (of_k) right_sides(p, first_row, place, row, sums, room);
  __syncthreads();
  solve(inverse, place, room);
  __syncthreads();
  if (!of_k) outputs(p, first_row, inverse + kMatrix, place, row, sums, room);
  move_state(p, first_row, place, room);
  __syncthreads();
}

// Grid: value heads x slices of columns.
__global__ void __launch_bounds__(kThreads, 2) delta_walk_kernel(DeltaChunksParams p) {
  extern __shared__ __align__(16) unsigned char shared[];
  WalkRoom& room = *reinterpret_cast<WalkRoom*>(shared);
  const int thread = static_cast<int>(threadIdx.x);
  Place place = {
      blockIdx.x, static_cast<int64_t>(blockIdx.y) * kSlice, 0, thread % (kSlice / 4) * 4, thread / (kSlice / 4),
      false};
  place.key = key_head(p.shape, place.head) * p.shape.k_dim;
  place.inside = place.first_column + place.column < p.shape.v_dim;
  float* const state = p.state + place.head * p.shape.k_dim * p.shape.v_dim + place.first_column + place.column;
  for (int64_t dim = place.group; dim < p.shape.k_dim; dim += kThreads / (kSlice / 4)) {
    const float4 none = {0.0f, 0.0f, 0.0f, 0.0f};
    *reinterpret_cast<float4*>(room.state + dim * kSlice + place.column) =
        place.inside ? load_four(state + dim * p.shape.v_dim) : none;
  }
  __syncthreads();
  const int64_t chunks = p.rows / kRows;
  for (int64_t chunk = 0; chunk < chunks; ++chunk) walk_chunk(p, chunk, place, room);
  if (!place.inside) return;
  for (int64_t dim = place.group; dim < p.shape.k_dim; dim += kThreads / (kSlice / 4)) {
    *reinterpret_cast<float4*>(state + dim * p.shape.v_dim) = load_four(room.state + dim * kSlice + place.column);
  }
}

}  // namespace

void delta_chunks(const DeltaChunksParams& params, Stream& stream) {
  const DeltaShape& shape = params.shape;
  const int64_t chunks = params.rows / kDeltaChunkRows;
  if (chunks > 0) {
    launch_on(cuda_stream(stream), "delta_matrices", {chunks, shape.v_heads, kThreads}, delta_matrices_kernel, params);
    launch_on(cuda_stream(stream), "delta_walk",
              {shape.v_heads, ceil_div(shape.v_dim, kSlice), kThreads, walk_bytes(shape.k_dim)}, delta_walk_kernel,
              params);
  }
  delta_remainder(params, stream);
}

}  // namespace headrace::kernels::cuda
