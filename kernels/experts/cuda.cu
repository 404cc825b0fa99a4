// A warp chooses a row's experts; a block lists the pairs of one expert. Compiled without contraction, like the CPU
// bodies: every FMA is explicit.
#include <algorithm>

#include "kernels/cuda/block_sum.cuh"
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/experts/bodies.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 128, kListThreads = 256;

// ---- route ----------------------------------------------------------------------------------------------------------

// Larger for a larger score, and never 0. A NaN is the lowest score.
__device__ uint32_t key_of(float score) {
  if (isnan(score)) score = -INFINITY;
  const uint32_t bits = __float_as_uint(score + 0.0f);  // so that -0 equals 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}

constexpr int kKeys = static_cast<int>(kMaxExperts) / 32;  // of a lane

// A lane's keys of experts lane + 32 i; 0 of those that do not exist.
__device__ void load_keys(const float* scores, int count, uint32_t (&keys)[kKeys]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    keys[i] = 0;
    if (i * 32 < count && i * 32 + lane < count) keys[i] = key_of(scores[i * 32 + lane]);
  }
}

// The largest of a warp's keys, and of equal ones the first. Removes it.
__device__ int take_largest(int count, uint32_t (&keys)[kKeys]) {
  const int lane = threadIdx.x % 32;
  uint32_t best = 0;
  int at = 0;
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (i * 32 >= count) break;
    if (keys[i] > best) best = keys[i], at = i;
  }
  const uint32_t largest = __reduce_max_sync(kAllLanes, best);
  const auto mine = static_cast<uint32_t>(at * 32 + lane);
  const auto chosen = static_cast<int>(__reduce_min_sync(kAllLanes, best == largest ? mine : ~0u));
#pragma unroll
  for (int i = 0; i < kKeys; ++i) {
    if (i * 32 >= count) break;
    if (i * 32 + lane == chosen) keys[i] = 0;
  }
  return chosen;
}

// A warp chooses a row's experts. Returns the expert of the rank that the lane has.
__device__ int route_row(const RouteParams& p, int64_t row) {
  const int lane = threadIdx.x % 32, count = static_cast<int>(p.count), used = static_cast<int>(p.used);
  const float* const scores = p.scores + row * p.stride;
  uint32_t keys[kKeys];
  load_keys(scores, count, keys);
  int mine = 0;
  for (int rank = 0; rank < used; ++rank) {
    const int chosen = take_largest(count, keys);
    if (lane == rank) mine = chosen;
  }
  const float largest = scores[__shfl_sync(kAllLanes, mine, 0)];
  float sum = 0.0f;
  for (int i = lane; i < count; i += 32) sum += expf((scores[i] - largest) * p.scale);
  sum = warp_sum(sum);
  float share = lane < used ? expf((scores[mine] - largest) * p.scale) / sum : 0.0f;
  if (p.normalise) {
    float of_chosen = 0.0f;
    for (int rank = 0; rank < used; ++rank) of_chosen += __shfl_sync(kAllLanes, share, rank);
    share /= of_chosen;
  }
  if (lane < used) {
    if (p.factors != nullptr) share *= p.factors[mine];
    p.experts[row * used + lane] = mine;
    p.shares[row * used + lane] = share;
  }
  return mine;
}

// Grid: rows / warps of a block.
__global__ void __launch_bounds__(kThreads) route_kernel(RouteParams p) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row < p.rows) route_row(p, row);
}

// ---- list_pairs -----------------------------------------------------------------------------------------------------

// What is listed of an expert that has all rows, behind `others` experts that have pairs, and what follows the last of
// those. All threads call it; `threads` of them, and this is one.
__device__ void list_end(const ListPairsParams& p, int others, int thread, int threads) {
  const int pairs = static_cast<int>(p.pairs), places = pairs + (p.shared ? pairs / static_cast<int>(p.used) : 0);
  if (p.shared && thread == 0) p.begin[p.count + 1] = places;
  if (p.from != nullptr) {
    for (int i = pairs + thread; i < places; i += threads) p.from[i] = i - pairs;
  }
  if (p.present == nullptr) return;
  const int experts = static_cast<int>(p.count) + (p.shared ? 1 : 0), most = places < experts ? places : experts;
  for (int i = others + thread; i < most; i += threads) {
    p.present[i] = p.shared && i == others ? static_cast<int>(p.count) : -1;
  }
}

// Writes the expert's place among those that have pairs. Returns how many do. All threads call it.
__device__ int list_present(const ListPairsParams& p, int expert) {
  __shared__ uint32_t has_pairs[kMaxExperts / 32];  // a bit an expert
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kMaxExperts / 32) has_pairs[thread] = 0;
  __syncthreads();
  for (int i = thread; i < p.pairs; i += kListThreads) {
    atomicOr(&has_pairs[p.experts[i] / 32], 1u << p.experts[i] % 32);
  }
  __syncthreads();
  int before = 0, all = 0;
  for (int i = 0; i < kMaxExperts / 32; ++i) {
    const uint32_t bits = has_pairs[i];
    if (i == expert / 32) before = all + __popc(bits & ((1u << expert % 32) - 1));
    all += __popc(bits);
  }
  if (thread == 0 && (has_pairs[expert / 32] >> expert % 32 & 1) != 0) p.present[before] = expert;
  return all;
}

// Grid: experts.
__global__ void __launch_bounds__(kListThreads) list_pairs_kernel(ListPairsParams p) {
  const int expert = static_cast<int>(blockIdx.x), pairs = static_cast<int>(p.pairs);
  const int others = p.present != nullptr ? list_present(p, expert) : 0;
  if (expert + 1 == p.count) list_end(p, others, static_cast<int>(threadIdx.x), kListThreads);
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

// ---- choose_experts -------------------------------------------------------------------------------------------------

constexpr int kFewRows = 64, kChooseThreads = 1024;

// The rows that have chosen an expert, as bits; a row chooses it once at most.
struct RowBits {
  uint32_t words[kFewRows / 32];
  __device__ int count() const { return __popc(words[0]) + __popc(words[1]); }
  __device__ int before(int row) const {
    const uint32_t lower = (1u << row % 32) - 1;
    return row < 32 ? __popc(words[0] & lower) : __popc(words[0]) + __popc(words[1] & lower);
  }
};
static_assert(kFewRows == 64 && kChooseThreads >= kMaxExperts);

// One block, with a thread for each expert at least. Few rows have few pairs, so a sum holds two numbers.
__global__ void __launch_bounds__(kChooseThreads) choose_experts_kernel(RouteParams p, ListPairsParams lists) {
  __shared__ RowBits chosen_by[kMaxExperts];
  __shared__ int begin[kMaxExperts];
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x), lane = thread % 32;
  const int rows = static_cast<int>(p.rows), used = static_cast<int>(p.used), pairs = rows * used;
  const bool has_expert = thread < p.count;
  if (has_expert) chosen_by[thread] = {};
  __syncthreads();
  for (int row = thread / 32; row < rows; row += threads / 32) {
    const int expert = route_row(p, row);
    if (lane < used) atomicOr(&chosen_by[expert].words[row / 32], 1u << row % 32);
  }
  __syncthreads();
  const int own = has_expert ? chosen_by[thread].count() : 0;
  int all = 0;
  const int before = sum_before(own > 0 ? own | 1 << 16 : 0, &all);
  if (has_expert) {
    begin[thread] = before & 0xffff;
    lists.begin[thread] = before & 0xffff;
  }
  if (thread == 0) lists.begin[p.count] = pairs;
  if (lists.present != nullptr && own > 0) lists.present[before >> 16] = thread;
  list_end(lists, all >> 16, thread, threads);
  __syncthreads();
  for (int i = thread; i < pairs; i += threads) {
    const int row = i / used, expert = p.experts[i], place = begin[expert] + chosen_by[expert].before(row);
    lists.places[i] = place;
    if (lists.from != nullptr) lists.from[place] = row;
  }
}
static_assert(kFewRows * kMaxUsedExperts < 1 << 16 && kMaxExperts < 1 << 15);

// ---- add_experts ----------------------------------------------------------------------------------------------------

// Few rows have few threads, so each loads eight experts' outputs at once, and blocks are small.
constexpr int kAtOnce = 8, kAddThreads = 32;

// Grid: rows x blocks of chunks.
__global__ void __launch_bounds__(kAddThreads) add_experts_kernel(AddExpertsParams p, bool aligned) {
  const int64_t col = (static_cast<int64_t>(blockIdx.y) * kAddThreads + threadIdx.x) * kChunk, row = blockIdx.x;
  if (col >= p.cols) return;
  const int count = static_cast<int>(p.cols - col < kChunk ? p.cols - col : kChunk);
  const int used = static_cast<int>(p.used);
  float sum[kChunk] = {}, residual[kChunk], shared[kChunk], share = 0.0f;
  if (p.residual != nullptr) load_chunk(p.type, p.residual, row * p.cols + col, count, aligned, residual);
  if (p.shared.y != nullptr) {
    load_chunk(p.shared.type, p.shared.y, row * p.cols + col, count, aligned, shared);
    share = 1.0f / (expf(-p.shared.gates[row * p.shared.stride]) + 1.0f);
  }
  for (int first = 0; first < used; first += kAtOnce) {
    int64_t places[kAtOnce];
    float shares[kAtOnce], y[kAtOnce][kChunk];
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (first + r >= used) break;
      places[r] = p.places[row * used + first + r];
      shares[r] = p.shares[row * used + first + r];
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (first + r >= used) break;
      load_chunk(p.y_type, p.y, places[r] * p.cols + col, count, aligned, y[r]);
    }
#pragma unroll
    for (int r = 0; r < kAtOnce; ++r) {
      if (first + r >= used) break;
#pragma unroll
      for (int i = 0; i < kChunk; ++i) sum[i] = fmaf(shares[r], y[r][i], sum[i]);
    }
  }
  if (p.shared.y != nullptr) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[i] = fmaf(share, shared[i], sum[i]);
  }
  if (p.residual != nullptr) {
#pragma unroll
    for (int i = 0; i < kChunk; ++i) sum[i] = residual[i] + sum[i];
  }
  store_chunk(p.type, p.out, row * p.cols + col, count, aligned, sum);
}

// =====================================================================================================================

}  // namespace

static_assert(kMaxUsedExperts <= 32);  // a lane each

void route(const RouteParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "route", {ceil_div(params.rows, kThreads / 32), 1, kThreads}, route_kernel, params);
}

void list_pairs(const ListPairsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "list_pairs", {params.count, 1, kListThreads}, list_pairs_kernel, params);
}

bool choose_experts(const RouteParams& routes, const ListPairsParams& lists, Stream& stream) {
  if (routes.rows > kFewRows) return false;
  const int64_t threads = std::min<int64_t>(kChooseThreads, 32 * std::max(routes.rows, ceil_div(routes.count, 32)));
  launch_on(cuda_stream(stream), "choose_experts", {1, 1, static_cast<int>(threads)}, choose_experts_kernel, routes,
            lists);
  return true;
}

void add_experts(const AddExpertsParams& params, Stream& stream) {
  const bool aligned =
      chunks_aligned(params.y, params.y_type, params.cols) &&
      chunks_aligned(params.residual, params.type, params.cols) &&
      (params.shared.y == nullptr || chunks_aligned(params.shared.y, params.shared.type, params.cols)) &&
      chunks_aligned(params.out, params.type, params.cols);
  launch_on(cuda_stream(stream), "add_experts", {params.rows, ceil_div(params.cols, kAddThreads * kChunk), kAddThreads},
            add_experts_kernel, params, aligned);
}

}  // namespace headrace::kernels::cuda
