// A warp chooses a row's experts; a block lists the pairs of one expert. Compiled without contraction, like the CPU
// bodies: every FMA is explicit.
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/experts/bodies.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kListThreads = 256;

// ---- route ----------------------------------------------------------------------------------------------------------

// Larger for a larger score, and of equal ones for the lower index. Positive; a NaN is the lowest score.
__device__ uint64_t key_of(float score, int index) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);  // so that -0 equals 0
  const uint32_t ordered = bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | (0xffffffffu - static_cast<uint32_t>(index));
}
__device__ int index_of(uint64_t key) { return static_cast<int>(0xffffffffu - static_cast<uint32_t>(key)); }

// Grid: rows / warps of a block. Each rank's key is the largest below that of the rank before.
__global__ void __launch_bounds__(kThreads) route_kernel(RouteParams p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= p.rows) return;
  const int lane = threadIdx.x % 32, count = static_cast<int>(p.count), used = static_cast<int>(p.used);
  const float* const scores = p.scores + row * p.count;
  uint64_t before = ~uint64_t{0};
  int mine = 0;  // of the rank that the lane has
  for (int rank = 0; rank < used; ++rank) {
    uint64_t best = 0;
    for (int i = lane; i < count; i += 32) {
      const uint64_t key = key_of(scores[i], i);
      if (key < before && key > best) best = key;
    }
    before = warp_reduce(best, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    if (lane == rank) mine = index_of(before);
  }
  const float largest = scores[__shfl_sync(kAllLanes, mine, 0)];
  float sum = 0.0f;
  for (int i = lane; i < count; i += 32) sum += expf(scores[i] - largest);
  sum = warp_sum(sum);
  float share = lane < used ? expf(scores[mine] - largest) / sum : 0.0f;
  if (p.normalise) {
    float of_chosen = 0.0f;
    for (int rank = 0; rank < used; ++rank) of_chosen += __shfl_sync(kAllLanes, share, rank);
    share /= of_chosen;
  }
  if (lane >= used) return;
  p.experts[row * used + lane] = mine;
  p.shares[row * used + lane] = share;
}

// ---- list_pairs -----------------------------------------------------------------------------------------------------

// The sum of the values of all threads before this one; `all`: of all threads. All threads call it.
__device__ int sum_before(int value, int* all) {
  __shared__ int of_warp[kListThreads / 32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = value;
#pragma unroll
  for (int apart = 1; apart < 32; apart *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, apart);
    if (lane >= apart) sum += other;
  }
  __syncthreads();  // what was there has been read
  if (lane == 31) of_warp[warp] = sum;
  __syncthreads();
  int before = 0;
  *all = 0;
#pragma unroll
  for (int w = 0; w < kListThreads / 32; ++w) {
    if (w < warp) before += of_warp[w];
    *all += of_warp[w];
  }
  return before + sum - value;
}

// Writes the expert's place among those that have pairs, and what follows the last of them. All threads call it.
__device__ void list_present(const ListPairsParams& p, int expert) {
  __shared__ uint32_t has_pairs[kMaxExperts / 32];  // a bit an expert
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kMaxExperts / 32) has_pairs[thread] = 0;
  __syncthreads();
  for (int i = thread; i < p.pairs; i += kListThreads) {
    atomicOr(&has_pairs[p.experts[i] / 32], 1u << p.experts[i] % 32);
  }
  __syncthreads();
  if (thread != 0) return;
  const int most = static_cast<int>(p.pairs < p.count ? p.pairs : p.count);
  int before = 0, all = 0;
  for (int i = 0; i < kMaxExperts / 32; ++i) {
    const uint32_t bits = has_pairs[i];
    if (i == expert / 32) before = all + __popc(bits & ((1u << expert % 32) - 1));
    all += __popc(bits);
  }
  if (has_pairs[expert / 32] >> expert % 32 & 1) p.present[before] = expert;
  if (expert + 1 == p.count) {
    for (int i = all; i < most; ++i) p.present[i] = -1;
  }
}

// Grid: experts.
__global__ void __launch_bounds__(kListThreads) list_pairs_kernel(ListPairsParams p) {
  const int expert = static_cast<int>(blockIdx.x), pairs = static_cast<int>(p.pairs);
  if (p.present != nullptr) list_present(p, expert);
  int lower = 0, next = 0;
  for (int i = threadIdx.x; i < pairs; i += kListThreads) lower += p.experts[i] < expert ? 1 : 0;
  sum_before(lower, &next);
  if (threadIdx.x == 0) {
    p.begin[expert] = next;
    if (expert + 1 == p.count) p.begin[p.count] = pairs;
  }
  for (int first = 0; first < pairs; first += kListThreads) {
    const int i = first + static_cast<int>(threadIdx.x);
    const bool is_mine = i < pairs && p.experts[i] == expert;
    int all = 0;
    const int before = sum_before(is_mine ? 1 : 0, &all);
    if (is_mine) p.places[i] = next + before;
    if (is_mine && p.from != nullptr) p.from[next + before] = i / static_cast<int>(p.used);
    next += all;
  }
}

// ---- spread_rows ----------------------------------------------------------------------------------------------------

// Grid: pairs x blocks of chunks.
__global__ void __launch_bounds__(kThreads) spread_rows_kernel(SpreadRowsParams p, bool aligned) {
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kChunk, pair = blockIdx.x;
  if (col >= p.cols) return;
  const int count = static_cast<int>(p.cols - col < kChunk ? p.cols - col : kChunk);
  float values[kChunk];
  load_chunk(p.type, p.x, pair / p.used * p.cols + col, count, aligned, values);
  store_chunk(p.type, p.out, p.places[pair] * p.cols + col, count, aligned, values);
}

// ---- add_experts ----------------------------------------------------------------------------------------------------

// Grid: rows x blocks of chunks.
__global__ void __launch_bounds__(kThreads) add_experts_kernel(AddExpertsParams p, bool aligned) {
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kChunk, row = blockIdx.x;
  if (col >= p.cols) return;
  const int count = static_cast<int>(p.cols - col < kChunk ? p.cols - col : kChunk);
  float sum[kChunk] = {}, values[kChunk];
  for (int64_t r = 0; r < p.used; ++r) {
    const float share = p.shares[row * p.used + r];
    load_chunk(p.y + p.places[row * p.used + r] * p.cols + col, count, aligned, values);
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[i] = fmaf(share, values[i], sum[i]);
  }
  load_chunk(p.type, p.residual, row * p.cols + col, count, aligned, values);
#pragma unroll
  for (int i = 0; i < kChunk; ++i) sum[i] = values[i] + sum[i];
  store_chunk(p.type, p.out, row * p.cols + col, count, aligned, sum);
}

// =====================================================================================================================

Grid grid_of(int64_t rows, int64_t cols) { return {rows, ceil_div(cols, kThreads * kChunk), kThreads}; }

}  // namespace

static_assert(kMaxUsedExperts <= 32);  // a lane each

void route(const RouteParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "route", {ceil_div(params.rows, kThreads / 32), 1, kThreads}, route_kernel, params);
}

void list_pairs(const ListPairsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "list_pairs", {params.count, 1, kListThreads}, list_pairs_kernel, params);
}

void spread_rows(const SpreadRowsParams& params, Stream& stream) {
  const bool aligned =
      chunks_aligned(params.x, params.type, params.cols) && chunks_aligned(params.out, params.type, params.cols);
  launch_on(cuda_stream(stream), "spread_rows", grid_of(params.rows * params.used, params.cols), spread_rows_kernel,
            params, aligned);
}

void add_experts(const AddExpertsParams& params, Stream& stream) {
  const bool aligned = chunks_aligned(params.y, DType::kF32, params.cols) &&
                       chunks_aligned(params.residual, params.type, params.cols) &&
                       chunks_aligned(params.out, params.type, params.cols);
  launch_on(cuda_stream(stream), "add_experts", grid_of(params.rows, params.cols), add_experts_kernel, params, aligned);
}

}  // namespace headrace::kernels::cuda
