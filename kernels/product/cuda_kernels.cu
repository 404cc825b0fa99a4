#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/product/cuda_kernels.h"
#include "kernels/weights/cuda_value.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128;
constexpr int kRowsAWarp = 8;

// ---- plain_product --------------------------------------------------------------------------------------------------

// Row `row` of a weight: its part, and which row of it. Rounds packed weights to the type of the product.
struct WeightRow {
  __device__ WeightRow(const Weight& weight, int64_t index) : part(weight.parts), row(index), cols(weight.cols) {
    for (; row >= part->rows; ++part) row -= part->rows;
    packed = packed_kind(part->type).bits != 16;
  }
  __device__ float at(DType type, int64_t col) const {
    if (!packed) return load_one(type, part->data, row * cols + col);
    return rounded_to(type, packed_weight(part->type, part->data, cols, row, col));
  }
  const WeightPart* part;
  int64_t row, cols;
  bool packed;
};

// Grid: columns / warps of a block, rows / kRowsAWarp.
__global__ void __launch_bounds__(kThreads, 6) plain_product_kernel(ProductParams p) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (col >= p.n) return;
  const int64_t row = static_cast<int64_t>(blockIdx.y) * kRowsAWarp;
  const int rows = static_cast<int>(p.rows - row < kRowsAWarp ? p.rows - row : kRowsAWarp);
  const int lane = threadIdx.x % 32;
  const WeightRow weight(p.weight, col);
  float sums[kRowsAWarp] = {};
  for (int64_t i = lane; i < p.k; i += 32) {
    const float w = weight.at(p.type, i);
#pragma unroll
    for (int r = 0; r < kRowsAWarp; ++r) {
      if (r < rows) sums[r] = fmaf(load_one(p.type, p.x, (row + r) * p.k + i), w, sums[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowsAWarp; ++r) {
    sums[r] = warp_sum(sums[r]);
    if (lane != r || r >= rows) continue;
    const int64_t element = (row + r) * p.n + col;
    float sum = sums[r];
    if (p.bias != nullptr) sum += load_one(p.type, p.bias, col);
    if (p.residual != nullptr) sum += load_one(p.out_type, p.residual, element);
    store_one(p.out_type, p.out, element, sum);
  }
}

// ---- finish_product -------------------------------------------------------------------------------------------------

// Grid: blocks of columns x rows.
__global__ void __launch_bounds__(kThreads) finish_product_kernel(ProductParams p, ProductSums sums, bool aligned) {
  const int64_t at = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kChunk;
  if (at >= sums.cols) return;
  const int count = static_cast<int>(sums.cols - at < kChunk ? sums.cols - at : kChunk);
  const int64_t row = blockIdx.y, col = sums.first_col + at, element = row * p.n + col;
  float sum[kChunk], added[kChunk];
  load_chunk(sums.data + row * sums.cols + at, count, aligned, sum);
  if (p.bias != nullptr) {
    load_chunk(p.type, p.bias, col, count, aligned, added);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[i] += added[i];
  }
  if (p.residual != nullptr) {
    load_chunk(p.out_type, p.residual, element, count, aligned, added);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[i] += added[i];
  }
  store_chunk(p.out_type, p.out, element, count, aligned, sum);
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

// Grid: columns / warps of a block.
__global__ void __launch_bounds__(kThreads)
    compare_with_sum_kernel(ProductParams p, const void* got, int32_t* mismatches) {
  const int64_t col = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (col >= p.n) return;
  const int lane = threadIdx.x % 32;
  float sum = 0.0f, magnitude = 0.0f;
  for (int64_t i = lane; i < p.k; i += 32) {
    const float w = load_one(p.type, p.weight.parts[0].data, col * p.k + i), x = load_one(p.type, p.x, i);
    sum = fmaf(x, w, sum);
    magnitude = fmaf(fabsf(x), fabsf(w), magnitude);
  }
  sum = warp_sum(sum);
  magnitude = warp_sum(magnitude);
  if (lane != 0) return;
  if (p.bias != nullptr) {
    const float bias = load_one(p.type, p.bias, col);
    sum += bias;
    magnitude += fabsf(bias);
  }
  if (p.residual != nullptr) {
    const float residual = load_one(p.out_type, p.residual, col);
    sum += residual;
    magnitude += fabsf(residual);
  }
  // Half a unit in the last place, the subnormals' one, and what two orders of a sum in fp32 may differ by.
  const float rounding = p.out_type == DType::kF32 ? 0x1p-24f : p.out_type == DType::kF16 ? 0x1p-11f : 0x1p-8f;
  const float allowed = rounding * fabsf(sum) + (p.out_type == DType::kF16 ? 0x1p-24f : 0.0f) + 0x1p-18f * magnitude;
  if (!(fabsf(load_one(p.out_type, got, col) - sum) <= allowed)) atomicAdd(mismatches, 1);
}

// =====================================================================================================================

Grid grid_of(int64_t rows, int64_t cols) { return {ceil_div(cols, kThreads), rows, kThreads}; }

}  // namespace

void plain_product(const ProductParams& params, CudaStream& stream) {
  const Grid grid = {ceil_div(params.n, kThreads / 32), ceil_div(params.rows, kRowsAWarp), kThreads};
  launch_on(stream, "plain_product", grid, plain_product_kernel, params);
}

void finish_product(const ProductParams& params, const ProductSums& sums, CudaStream& stream) {
  const auto whole = [&](const void* data, DType type) {
    return chunks_aligned(data, type, params.n) && chunks_aligned(data, type, sums.first_col);
  };
  const bool aligned = chunks_aligned(sums.data, DType::kF32, sums.cols) && whole(params.out, params.out_type) &&
                       whole(params.bias, params.type) && whole(params.residual, params.out_type);
  launch_on(stream, "finish_product", grid_of(params.rows, ceil_div(sums.cols, kChunk)), finish_product_kernel, params,
            sums, aligned);
}

void fill_check_rows(const CheckRows& rows, CudaStream& stream) {
  launch_on(stream, "fill_check_rows", grid_of(rows.rows, rows.cols), fill_check_rows_kernel, rows);
}

void compare_check_rows(const CheckRows& rows, const void* expected, int32_t* mismatches, CudaStream& stream) {
  launch_on(stream, "compare_check_rows", grid_of(rows.rows, rows.cols), compare_check_rows_kernel, rows, expected,
            mismatches);
}

void compare_with_sum(const ProductParams& params, const void* got, int32_t* mismatches, CudaStream& stream) {
  launch_on(stream, "compare_with_sum", {ceil_div(params.n, kThreads / 32), 1, kThreads}, compare_with_sum_kernel,
            params, got, mismatches);
}

}  // namespace headrace::kernels::cuda
