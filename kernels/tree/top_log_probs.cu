// The likeliest tokens of a row (kernels/tree/op.h) in two launches: each part of a row writes its best keys, its
// largest value and the sum of its exponentials; one block per row finds the best of those. Sums have one order, given
// by the vocabulary's size. Compiled without contraction (draw.cuh).
#include "kernels/cuda/chunk.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/tree/bodies.h"
#include "kernels/tree/top_keys.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kHeld = kTopPartTokens / kTopThreads;  // values of a part that a thread keeps
constexpr int kHeldAtOnce = kTopThreads * kTokensAtOnce;
constexpr int kMaxParts = kMaxTopVocab / kTopPartTokens;
constexpr int kHeldOfRow = kMaxParts * kMaxBranch / kTopThreads;  // best keys of the parts that a thread keeps
static_assert(kMaxTopVocab % kTopPartTokens == 0 && kMaxParts * kMaxBranch % kTopThreads == 0);
static_assert(kMaxBranch <= kMaxTop);

struct PartSum {
  float top;  // -inf: an empty part
  float sum;  // of e^(value - top)
};

struct Top {
  TopLogProbsParams params;
  uint64_t* keys;  // [rows, parts, k]
  PartSum* sums;   // [rows, parts]
  int parts;
  bool aligned;  // four tokens in one access
  float inverse_temperature;
};

__device__ uint32_t word_of(const Top& p, int64_t position, int64_t token) {
  uint32_t words[kTokensAtOnce];
  philox_words(p.params.seed, position, token, words);
  const int64_t word = token % kTokensAtOnce;
  return word == 0 ? words[0] : word == 1 ? words[1] : word == 2 ? words[2] : words[3];
}

// Converts four clean logits to ranked values.
__device__ void add_noise(const Top& p, int64_t position, int64_t id, float (&values)[kTokensAtOnce]) {
  uint32_t words[kTokensAtOnce];
  if (p.params.map == nullptr) {
    philox_words(p.params.seed, position, id, words);
  } else {
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) {
      words[i] = id + i < p.params.vocab ? word_of(p, position, p.params.map[id + i]) : 0;
    }
  }
#pragma unroll
  for (int i = 0; i < kTokensAtOnce; ++i) {
    values[i] = fminf(values[i] * p.inverse_temperature, FLT_MAX) + gumbel(words[i]);
  }
}

// The result in every thread: lanes by halves, then warps in order.
__device__ float block_sum(float value) {
  __shared__ float of_warp[kTopWarps];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = of_warp[0];
#pragma unroll
  for (int warp = 1; warp < kTopWarps; ++warp) sum += of_warp[warp];
  return sum;
}

// Grid: rows x parts.
__global__ void __launch_bounds__(kTopThreads) top_of_parts_kernel(Top p) {
  __shared__ TopKeys shared;
  const int64_t row = blockIdx.x, begin = blockIdx.y * kTopPartTokens;
  const float* logits = p.params.logits + row * p.params.stride;
  const int64_t position = p.params.temperature > 0 ? p.params.positions[row] + p.params.position_offset : 0;
  float values[kHeld / kTokensAtOnce][kTokensAtOnce];
  const auto id_at = [&](int i) { return begin + i * kHeldAtOnce + threadIdx.x * kTokensAtOnce; };
#pragma unroll
  for (int i = 0; i < kHeld / kTokensAtOnce; ++i) {
    load_four(logits, p.params.vocab, p.aligned, id_at(i), values[i]);
  }
  uint64_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld / kTokensAtOnce; ++i) {
    if (p.params.temperature > 0 && id_at(i) < p.params.vocab) add_noise(p, position, id_at(i), values[i]);
#pragma unroll
    for (int j = 0; j < kTokensAtOnce; ++j) {
      keys[i * kTokensAtOnce + j] = id_at(i) + j < p.params.vocab ? key_of(values[i][j], id_at(i) + j) : 0;
    }
  }
  const int count = top_keys(keys, static_cast<int>(p.params.k), shared);
  const float top = score_of(shared.ranked[0]);
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (keys[i] != 0 && top > -INFINITY) sum += exponential_of(score_of(keys[i]) - top);
  }
  sum = block_sum(sum);
  const int64_t part = row * p.parts + blockIdx.y;
  if (threadIdx.x == 0) p.sums[part] = {top, sum};
  const auto rank = static_cast<int>(threadIdx.x);
  if (rank < p.params.k) p.keys[part * p.params.k + rank] = rank < count ? shared.ranked[rank] : 0;
}

constexpr int kPartsALane = (kMaxParts + 31) / 32;

// The logarithm of the sum of e^(value - top) over a row, in every lane of a warp.
__device__ float log_sum_of(const PartSum (&sums)[kPartsALane], float top) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPartsALane; ++i) {
    if (sums[i].top > -INFINITY) sum += sums[i].sum * exponential_of(sums[i].top - top);
  }
  return logf(warp_sum(sum));
}

// Grid: rows.
__global__ void __launch_bounds__(kTopThreads) top_of_rows_kernel(Top p) {
  __shared__ TopKeys shared;
  const int64_t row = blockIdx.x;
  const auto k = static_cast<int>(p.params.k);
  const int total = p.parts * k;
  uint64_t keys[kHeldOfRow];
#pragma unroll
  for (int i = 0; i < kHeldOfRow; ++i) {
    const int at = i * kTopThreads + static_cast<int>(threadIdx.x);
    keys[i] = at < total ? p.keys[row * total + at] : 0;
  }
  PartSum sums[kPartsALane];
#pragma unroll
  for (int i = 0; i < kPartsALane; ++i) {
    const int part = i * 32 + static_cast<int>(threadIdx.x % 32);
    sums[i] = part < p.parts ? p.sums[row * p.parts + part] : PartSum{-INFINITY, 0.0f};
  }
  top_keys(keys, k, shared);
  const float top = score_of(shared.ranked[0]);
  const float log_sum = log_sum_of(sums, top);
  const auto rank = static_cast<int>(threadIdx.x);
  if (rank >= k) return;
  const float value = score_of(shared.ranked[rank]);
  const int32_t id = id_of(shared.ranked[rank]);
  p.params.log_probs[row * k + rank] = value == -INFINITY ? -INFINITY : fminf(value - top - log_sum, 0.0f);
  p.params.tokens[row * k + rank] = p.params.map != nullptr ? p.params.map[id] : id;
}

// =====================================================================================================================

}  // namespace

void top_log_probs(const TopLogProbsParams& params, Stream& stream) {
  CHECK(params.workspace != nullptr);
  Top p{};
  p.params = params;
  p.parts = static_cast<int>(ceil_div(params.vocab, kTopPartTokens));
  p.keys = static_cast<uint64_t*>(params.workspace);
  p.sums = reinterpret_cast<PartSum*>(p.keys + params.rows * p.parts * params.k);
  p.aligned = chunks_aligned(params.logits, DType::kF32, params.stride);
  const float inverse = 1.0f / params.temperature;
  p.inverse_temperature = inverse < FLT_MAX ? inverse : FLT_MAX;
  CudaStream& on = cuda_stream(stream);
  launch_on(on, "top_of_parts", {params.rows, p.parts, kTopThreads}, top_of_parts_kernel, p);
  launch_on(on, "top_of_rows", {params.rows, 1, kTopThreads}, top_of_rows_kernel, p);
}

}  // namespace headrace::kernels::cuda
