// The router: a block multiplies tiles of rows by tiles of experts, and its sixteen warps divide the columns, so that
// the loads of one row are under way together. Rows are operand A of the tensor cores, experts operand B. Columns are
// permuted within each 32, alike in both operands: lane 4 g + t has columns 8 t to 8 t + 7, for two steps. The sums of
// the warps are added in order. A score's order of sums depends on the columns alone. Compiled without contraction.
#include <algorithm>

#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/elementwise/norm_threads.cuh"
#include "kernels/experts/bodies.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int kRouterWarps = 16, kRouterThreads = 32 * kRouterWarps;
constexpr int kTileRows = 16, kTileExperts = 8, kStep = 32;
constexpr int kPad = 32;  // columns between rows in shared memory, which spread their banks
constexpr int kTileSums = kTileRows * kTileExperts;

// kNorms: one tile of rows, which the block normalises first.
template <int kRowTiles_, int kExpertTiles_, bool kNorms_>
struct RouterShape {
  static constexpr int kRowTiles = kRowTiles_, kExpertTiles = kExpertTiles_, kTiles = kRowTiles * kExpertTiles;
  static constexpr bool kNorms = kNorms_;
  static constexpr int kAhead = kExpertTiles > 1 ? 2 : 4;  // steps of weights
  static constexpr int kSumsBytes = kRouterWarps * kTiles * kTileSums * 4;
  static_assert(!kNorms || kRowTiles == 1);
};

int normed_bytes(int64_t rows, int64_t cols) { return static_cast<int>(rows * (cols + kPad) * 2); }

__device__ inline void load_row_chunk(const RouterParams& p, int64_t row, int chunk, float (&values)[kChunk]) {
  load_chunk(p.x_type, p.x, row * p.cols + chunk * kChunk, kChunk, true, values);
}

// Normalises all rows as rms_norm() does, to shared memory; the order of sums is that of norm_threads.cuh. `threads` of
// the block share a row. write: also to p.normed. All threads call it.
__device__ inline void normalise_tile(const RouterParams& p, __nv_bfloat16* to, bool write) {
  __shared__ float squares_of[kTileRows][kNormThreads / 32];
  const int threads = norm_threads(p.cols), warps = threads / 32, at_once = kRouterWarps / warps;
  const int warp = static_cast<int>(threadIdx.x / 32), thread = static_cast<int>(threadIdx.x) - warp / warps * threads;
  const int chunks = static_cast<int>(p.cols / kChunk), rows = static_cast<int>(p.rows);
  const int first = warp / warps < at_once ? warp / warps : rows;  // a warp that is left over has no row
#pragma unroll 2
  for (int row = first; row < rows; row += at_once) {
    float squares = 0.0f;
#pragma unroll 2
    for (int chunk = thread; chunk < chunks; chunk += threads) {
      float values[kChunk];
      load_row_chunk(p, row, chunk, values);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) squares = fmaf(values[i], values[i], squares);
    }
    squares = warp_sum(squares);
    if (threadIdx.x % 32 == 0) squares_of[row][warp % warps] = squares;
  }
  __syncthreads();
#pragma unroll 1
  for (int row = first; row < rows; row += at_once) {
    float sum = squares_of[row][0];
    for (int i = 1; i < warps; ++i) sum = __fadd_rn(sum, squares_of[row][i]);
    const float mean = __fdiv_rn(sum, static_cast<float>(p.cols));
    const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(mean, p.eps)));
#pragma unroll 2
    for (int chunk = thread; chunk < chunks; chunk += threads) {
      float values[kChunk], weights[kChunk];
      load_row_chunk(p, row, chunk, values);
      load_chunk(static_cast<const __nv_bfloat16*>(p.norm) + chunk * kChunk, kChunk, true, weights);
#pragma unroll
      for (int i = 0; i < kChunk; ++i) values[i] = __fmul_rn(__fmul_rn(values[i], scale), weights[i]);
      store_chunk(to + row * (static_cast<int>(p.cols) + kPad) + chunk * kChunk, kChunk, true, values);
      if (write)
        store_chunk(static_cast<__nv_bfloat16*>(p.normed) + row * p.cols + chunk * kChunk, kChunk, true, values);
    }
  }
  __syncthreads();
}

__device__ inline uint4 load_part(const __nv_bfloat16* row, int col, int cols) {
  return col < cols ? *reinterpret_cast<const uint4*>(row + col) : uint4{};
}

// The sums of one warp's columns. x: the block's rows, x_stride elements apart.
template <typename Shape>
struct WarpSums {
  float sums[Shape::kRowTiles][Shape::kExpertTiles][4] = {};
  uint4 weights[Shape::kExpertTiles][Shape::kAhead];
  const __nv_bfloat16* experts[Shape::kExpertTiles];
  int cols, step, end;  // steps of 32 columns

  __device__ explicit WarpSums(const RouterParams& p) {
    const int g = static_cast<int>(threadIdx.x % 32 / 4), warp = static_cast<int>(threadIdx.x / 32);
#pragma unroll
    for (int e = 0; e < Shape::kExpertTiles; ++e) {
      const int expert = (static_cast<int>(blockIdx.y) * Shape::kExpertTiles + e) * kTileExperts + g;
      const int64_t last = p.count - 1;
      experts[e] = static_cast<const __nv_bfloat16*>(p.weight) + (expert < last ? expert : last) * p.cols;
    }
    cols = static_cast<int>(p.cols);
    const int steps = (cols + kStep - 1) / kStep;
    step = steps * warp / kRouterWarps;
    end = steps * (warp + 1) / kRouterWarps;
    load_weights();
  }
  __device__ int lane_col(int of_step) const { return of_step * kStep + static_cast<int>(threadIdx.x % 4) * 8; }
  __device__ void load_weights() {
#pragma unroll
    for (int j = 0; j < Shape::kAhead; ++j) {
#pragma unroll
      for (int e = 0; e < Shape::kExpertTiles; ++e) {
        if (step + j < end) weights[e][j] = load_part(experts[e], lane_col(step + j), cols);
      }
    }
  }
  // rows: of the block's tiles, at least one.
  __device__ void add(const __nv_bfloat16* x, int64_t x_stride, int rows) {
    const int g = static_cast<int>(threadIdx.x % 32 / 4);
#pragma unroll 1
    for (; step < end; step += Shape::kAhead, load_weights()) {
#pragma unroll
      for (int j = 0; j < Shape::kAhead; ++j) {
        if (step + j >= end) break;
        const int col = lane_col(step + j);
#pragma unroll
        for (int i = 0; i < Shape::kRowTiles; ++i) {
          const uint4 low = load_part(x + min(i * kTileRows + g, rows - 1) * x_stride, col, cols);
          const uint4 high = load_part(x + min(i * kTileRows + 8 + g, rows - 1) * x_stride, col, cols);
          const uint32_t first[4] = {low.x, high.x, low.y, high.y}, second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
          for (int e = 0; e < Shape::kExpertTiles; ++e) {
            const uint4& w = weights[e][j];
            multiply(sums[i][e], first, w.x, w.y, __nv_bfloat16{});
            multiply(sums[i][e], second, w.z, w.w, __nv_bfloat16{});
          }
        }
      }
    }
  }
};

// Grid: tiles of rows x tiles of experts.
template <typename Shape>
__global__ void __launch_bounds__(kRouterThreads) router_kernel(const __grid_constant__ RouterParams p) {
  extern __shared__ __align__(128) unsigned char router_shared[];
  const int first = static_cast<int>(blockIdx.x) * (Shape::kRowTiles * kTileRows);
  WarpSums<Shape> warp_sums(p);
  auto* const sums = reinterpret_cast<float*>(router_shared);
  if constexpr (Shape::kNorms) {
    auto* const normed = reinterpret_cast<__nv_bfloat16*>(router_shared + Shape::kSumsBytes);
    normalise_tile(p, normed, blockIdx.y == 0);
    warp_sums.add(normed, p.cols + kPad, static_cast<int>(p.rows));
  } else {
    warp_sums.add(static_cast<const __nv_bfloat16*>(p.normed) + first * p.cols, p.cols,
                  static_cast<int>(p.rows - first));
  }
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
#pragma unroll
  for (int i = 0; i < Shape::kTiles; ++i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      sums[(warp * Shape::kTiles + i) * kTileSums + j * 32 + lane] =
          warp_sums.sums[i / Shape::kExpertTiles][i % Shape::kExpertTiles][j];
    }
  }
  __syncthreads();
  for (int i = thread; i < Shape::kTiles * kTileSums; i += kRouterThreads) {
    float sum = sums[i];
    for (int w = 1; w < kRouterWarps; ++w) sum = __fadd_rn(sum, sums[w * Shape::kTiles * kTileSums + i]);
    const int tile = i / kTileSums, j = i / 32 % 4, of = i % 32;  // of lane `of`: row g or g + 8, expert 2 t or 2 t + 1
    const int64_t row = first + tile / Shape::kExpertTiles * kTileRows + j / 2 * 8 + of / 4;
    const int64_t expert =
        (int64_t{blockIdx.y} * Shape::kExpertTiles + tile % Shape::kExpertTiles) * kTileExperts + of % 4 * 2 + j % 2;
    if (row >= p.rows || expert >= p.count) continue;
    if (p.bias != nullptr) sum = __fadd_rn(sum, __bfloat162float(static_cast<const __nv_bfloat16*>(p.bias)[expert]));
    p.scores[row * p.count + expert] = sum;
  }
}

template <typename Shape>
void launch_router(const RouterParams& p, CudaStream& stream) {
  const int bytes = Shape::kSumsBytes + (Shape::kNorms ? normed_bytes(p.rows, p.cols) : 0);
  launch_on(stream, "router",
            {ceil_div(p.rows, Shape::kRowTiles * kTileRows), ceil_div(p.count, Shape::kExpertTiles * kTileExperts),
             kRouterThreads, bytes},
            router_kernel<Shape>, p);
}

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

// Rows up to which tiles are small, so that there are blocks for more multiprocessors.
constexpr int64_t kFewRouterRows = 64;
// sm_86 and sm_89 have no more shared memory for a block than 99 KB.
constexpr int kMaxNormedBytes = 80 * 1024;

}  // namespace

bool router_takes(const RouterParams& p) {
  return p.type == DType::kBF16 && p.cols % 8 == 0 && p.cols <= INT32_MAX / 2 && aligned(p.x) && aligned(p.norm) &&
         aligned(p.weight) && aligned(p.normed);
}

bool router_normalises(const RouterParams& p) {
  return p.rows <= kTileRows && normed_bytes(p.rows, p.cols) <= kMaxNormedBytes;
}

void router(const RouterParams& params, Stream& stream) {
  CudaStream& on = cuda_stream(stream);
  if (router_normalises(params)) return launch_router<RouterShape<1, 1, true>>(params, on);
  if (params.rows <= kFewRouterRows) return launch_router<RouterShape<1, 1, false>>(params, on);
  launch_router<RouterShape<2, 4, false>>(params, on);
}

}  // namespace headrace::kernels::cuda
