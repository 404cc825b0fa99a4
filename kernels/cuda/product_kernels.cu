#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/product_kernels.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRowsAWarp = 8;

// ---- plain_product --------------------------------------------------------------------------------------------------

// Grid: columns / warps of a block, rows / kRowsAWarp.
__global__ void __launch_bounds__(kThreads) plain_product_kernel(ProductParams p) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (col >= p.n) return;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kRowsAWarp;
  const int rows = static_cast<int>(p.rows - row < kRowsAWarp ? p.rows - row : kRowsAWarp);
  const int lane = threadIdx.x % 32;
  float sums[kRowsAWarp] = {};
  for (int64_t i = lane; i < p.k; i += 32) {
    const float w = load_one(p.type, p.w, col * p.k + i);
#pragma unroll
    for (int r = 0; r < kRowsAWarp; ++r) {
      if (r < rows) sums[r] = fmaf(load_one(p.type, p.x, (row + r) * p.k + i), w, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAWarp; ++r) {
    for (int apart = 16; apart > 0; apart /= 2) sums[r] += __shfl_xor_sync(0xffffffff, sums[r], apart);
    if (lane != r || r >= rows) continue;
    const int64_t element = (row + r) * p.n + col;
    float sum = sums[r];
    if (p.bias != nullptr) sum += load_one(p.type, p.bias, col);
    if (p.residual != nullptr) sum += load_one(p.type, p.residual, element);
    store_one(p.out_type, p.out, element, sum);
  }
}

// ---- add_bias -------------------------------------------------------------------------------------------------------

// Grid: blocks of columns x rows.
__global__ void __launch_bounds__(kThreads) add_bias_kernel(float* out, const void* bias, DType type, int64_t n) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (col < n) out[blockIdx.y * n + col] += load_one(type, bias, col);
}

// ---- The check ------------------------------------------------------------------------------------------------------

__device__ bool check_row_marked(int pattern, int64_t row, int64_t rows) {
  switch (pattern) {
    case 0:
      return row % 2 == 0;
    case 1:
      return row % 2 == 1;
    case 2:
      return row < rows / 2;
    default:
      return row >= rows / 2;
  }
}

// A value in [-1, 1) of the seed: any mixing will do.
__device__ float value_of(uint64_t seed) {
  seed = (seed ^ seed >> 31) * 0x9E3779B97F4A7C15u;
  seed = (seed ^ seed >> 29) * 0xBF58476D1CE4E5B9u;
  return static_cast<float>(static_cast<int32_t>(seed >> 32)) * 0x1p-31f;
}

// Grid: blocks of columns x rows.
__global__ void __launch_bounds__(kThreads) fill_check_rows_kernel(CheckRows p) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = blockIdx.y;
  if (col >= p.cols) return;
  const auto kind =
      static_cast<uint64_t>(check_row_marked(p.pattern, row, p.rows) ? 0 : row * kCheckPatterns + p.pattern + 1);
  store_one(p.type, p.data, row * p.cols + col, value_of(kind << 32 | static_cast<uint64_t>(col)));
}

// Grid: blocks of columns x rows.
__global__ void __launch_bounds__(kThreads)
    compare_check_rows_kernel(CheckRows p, const void* expected, int32_t* mismatches) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = blockIdx.y;
  if (col >= p.cols || !check_row_marked(p.pattern, row, p.rows)) return;
  const int64_t at = row * p.cols + col;
  const bool same = p.type == DType::kF32
                        ? static_cast<const uint32_t*>(p.data)[at] == static_cast<const uint32_t*>(expected)[col]
                        : static_cast<const uint16_t*>(p.data)[at] == static_cast<const uint16_t*>(expected)[col];
  if (!same) atomicAdd(mismatches, 1);
}

// =====================================================================================================================

Grid grid_of(int64_t rows, int64_t cols) { return {ceil_div(cols, kThreads), rows, kThreads}; }

}  // namespace

void plain_product(const ProductParams& params, CudaStream& stream) {
  const Grid grid = {ceil_div(params.n, kThreads / 32), ceil_div(params.rows, kRowsAWarp), kThreads};
  launch_on(stream, "plain_product", grid, plain_product_kernel, params);
}

void add_bias(float* out, const void* bias, DType type, int64_t rows, int64_t n, CudaStream& stream) {
  launch_on(stream, "add_bias", grid_of(rows, n), add_bias_kernel, out, bias, type, n);
}

void fill_check_rows(const CheckRows& rows, CudaStream& stream) {
  launch_on(stream, "fill_check_rows", grid_of(rows.rows, rows.cols), fill_check_rows_kernel, rows);
}

void compare_check_rows(const CheckRows& rows, const void* expected, int32_t* mismatches, CudaStream& stream) {
  launch_on(stream, "compare_check_rows", grid_of(rows.rows, rows.cols), compare_check_rows_kernel, rows, expected,
            mismatches);
}

}  // namespace headrace::kernels::cuda
