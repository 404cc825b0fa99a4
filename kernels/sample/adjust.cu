// Penalties and masks (kernels/sample/op.h): a thread for each token of a row, so that no order of work matters.
// Compiled without contraction.
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/sample/bodies.h"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int64_t kPartTokens = 4096;

__device__ float penalized(float x, int32_t count, const PenaltySettings& s) {
  const int32_t of_answer = count & (kInPrompt - 1);
  x = x > 0.0f ? x / s.repetition : x * s.repetition;
  x = x - s.frequency * static_cast<float>(of_answer);
  return of_answer > 0 ? x - s.presence : x;
}

// Grid: rows x parts.
__global__ void __launch_bounds__(kThreads) penalize_logits_kernel(PenalizeLogitsParams p) {
  __shared__ int32_t way[kMaxPenaltyDepth];  // the tokens of the tree before the row's
  __shared__ int length;
  if (threadIdx.x == 0) {
    int count = 0;
    for (int32_t node = p.leaves[blockIdx.x]; node >= 0 && count < kMaxPenaltyDepth; node = p.parents[node]) {
      way[count++] = p.tokens[node];
    }
    length = count;
  }
  __syncthreads();
  float* const row = p.logits + blockIdx.x * p.vocab;
  const int64_t begin = blockIdx.y * kPartTokens;
  const int64_t end = begin + kPartTokens < p.vocab ? begin + kPartTokens : p.vocab;
  for (int64_t token = begin + threadIdx.x; token < end; token += kThreads) {
    int32_t count = p.counts[token];
    for (int i = 0; i < length; ++i) count += way[i] == token ? 1 : 0;
    if (count != 0) row[token] = penalized(row[token], count, p.settings);
  }
}

// Grid: rows x parts.
__global__ void __launch_bounds__(kThreads) mask_logits_kernel(MaskLogitsParams p) {
  const int32_t index = p.mask_rows[blockIdx.x];
  if (index < 0) return;
  const uint32_t* const mask = p.masks + index * ((p.vocab + 31) / 32);
  float* const row = p.logits + blockIdx.x * p.vocab;
  const int64_t begin = blockIdx.y * kPartTokens;
  const int64_t end = begin + kPartTokens < p.vocab ? begin + kPartTokens : p.vocab;
  for (int64_t token = begin + threadIdx.x; token < end; token += kThreads) {
    if ((mask[token / 32] >> (token % 32) & 1) != 0) continue;
    if (row[token] < INFINITY) row[token] = -INFINITY;  // NaN is not less
  }
}

int parts_of(int64_t vocab) { return static_cast<int>(ceil_div(vocab, kPartTokens)); }

}  // namespace

void penalize_logits(const PenalizeLogitsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "penalize_logits", {params.rows, parts_of(params.vocab), kThreads},
            penalize_logits_kernel, params);
}

void mask_logits(const MaskLogitsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "mask_logits", {params.rows, parts_of(params.vocab), kThreads}, mask_logits_kernel,
            params);
}

}  // namespace headrace::kernels::cuda
