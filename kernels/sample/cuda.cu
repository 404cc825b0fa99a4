// Sampling (kernels/sample/op.h) in up to four launches: each part of a row finds its largest logit; one block per row
// finds the border of the filters, by a radix select over the bits of the gaps (defined in kernels/sample/cpu_isa.h);
// each part finds its best token; the best of a row is its token. A best is one integer with the score above the id, so
// ties go to the lower id and the order of merging does not matter. Probabilities are summed as integers for the same
// reason. Compiled without contraction (draw.cuh).
#include <cfloat>
#include <cmath>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/warp.cuh"
#include "kernels/sample/bodies.h"
#include "kernels/sample/draw.cuh"

namespace headrace::kernels::cuda {

namespace {

constexpr int kThreads = 256;
constexpr int kBorderThreads = 1024;

struct Border {
  float gap;
  int32_t id;
};
static_assert(sizeof(Border) == 8);  // sample_workspace_bytes()
constexpr Border kNoBorder = {FLT_MAX, INT32_MAX};

struct Workspace {
  uint64_t* tops;   // [rows, parts]: score and id; 0 if all are -inf, kNanKey if there is a NaN
  uint64_t* bests;  // [rows, parts]
  Border* borders;  // [rows]
};

struct Sampling {
  const float* logits;       // [rows, vocab]
  const int32_t* positions;  // [rows]
  int32_t* tokens;           // [rows]
  Workspace workspace;
  int64_t vocab;
  int parts;
  bool aligned;  // four tokens in one access
  bool filtered;
  float inverse_temperature;
  float widest;  // the largest gap that min-p allows
  int32_t top_k;
  float top_p;
  uint64_t seed;
};

// Greater than the key of every number.
constexpr uint64_t kNanKey = ~uint64_t{0};

// ---- Values ---------------------------------------------------------------------------------------------------------

// The row's top key, in every thread.
template <int kBlockThreads>
__device__ uint64_t merged(const uint64_t* keys, int count) {
  uint64_t key = 0;
  for (int i = threadIdx.x; i < count; i += kBlockThreads) key = larger(key, keys[i]);
  return block_largest<kBlockThreads>(key);
}

// Whether a row with this top has a token.
__device__ bool has_token(uint64_t top) { return top != 0 && top != kNanKey && score_of(top) < INFINITY; }

__device__ int32_t no_token(uint64_t top) {
  return top == kNanKey ? kNanLogit : top != 0 ? kInfiniteLogit : kNoFiniteLogit;
}

__device__ bool passes(const Border& border, float gap, int64_t id) {
  return gap < border.gap || (gap == border.gap && id <= border.id);
}

// ---- The largest logit ----------------------------------------------------------------------------------------------

__device__ uint64_t with_logits(uint64_t best, const float (&logits)[kTokensAtOnce], int64_t id) {
#pragma unroll
  for (int i = 0; i < kTokensAtOnce; ++i) {
    if (logits[i] > -INFINITY) best = larger(best, key_of(logits[i], id + i));
    if (logits[i] != logits[i]) best = kNanKey;
  }
  return best;
}

// Grid: rows x parts.
__global__ void __launch_bounds__(kThreads) sample_top_kernel(Sampling p) {
  const float* row = p.logits + blockIdx.x * p.vocab;
  const int64_t begin = blockIdx.y * kSamplePartTokens;
  uint64_t best = 0;
#pragma unroll
  for (int64_t at = 0; at < kSamplePartTokens; at += kThreads * kTokensAtOnce) {
    const int64_t id = begin + at + threadIdx.x * kTokensAtOnce;
    float logits[kTokensAtOnce];
    load_four_raw(row, p.vocab, p.aligned, id, logits);
    best = with_logits(best, logits, id);
  }
  best = block_largest<kThreads>(best);
  if (threadIdx.x == 0) p.workspace.tops[static_cast<int64_t>(blockIdx.x) * p.parts + blockIdx.y] = best;
}

// ---- The border of top-k, top-p and min-p ---------------------------------------------------------------------------

constexpr int kLevels = 3;
constexpr int kBuckets = 1 << 11;
__device__ constexpr int kShift[kLevels] = {20, 9, 0};
__device__ constexpr int kBits[kLevels] = {11, 11, 9};

struct Histogram {
  uint32_t low[kBuckets], high[kBuckets];  // one 64-bit sum in two words, because words have atomics
};

// The sum over the threads before this one, and the total.
__device__ uint64_t block_sum_before(uint64_t value, uint64_t* total) {
  __shared__ uint64_t of_warp[kBorderThreads / 32];
  uint64_t sum = value;
  for (int apart = 1; apart < 32; apart *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffff, sum, apart);
    if (threadIdx.x % 32 >= static_cast<unsigned>(apart)) sum += other;
  }
  if (threadIdx.x % 32 == 31) of_warp[threadIdx.x / 32] = sum;
  __syncthreads();
  uint64_t before = 0, all = 0;
  for (unsigned warp = 0; warp < kBorderThreads / 32; ++warp) {
    if (warp < threadIdx.x / 32) before += of_warp[warp];
    all += of_warp[warp];
  }
  __syncthreads();
  *total = all;
  return before + sum - value;
}

struct RowView {
  const float* logits;
  float top;
};

enum class Weigh { kOne, kProbability };

// Probabilities, the largest of which is 1, are in units of 2^-shift, so that a vocabulary's sum fits.
__device__ int weight_shift(int64_t vocab) {
  const int shift = __clzll(vocab) - 2;
  return shift < 50 ? shift : 50;
}
__device__ uint64_t weight_of(Weigh weigh, float gap, int shift) {
  if (weigh == Weigh::kOne) return 1;
  return __float2ull_rn(exponential_of(-gap) * __int_as_float((shift + 127) << 23));
}

// Calls body(gap) for each token within the border. Keeps several loads in flight, because one block reads a row.
template <typename Body>
__device__ void for_each(const Sampling& p, const RowView& row, const Border& within, const Body& body) {
  constexpr int kLoads = 4;
  constexpr int64_t kStep = kBorderThreads * kTokensAtOnce;
  for (int64_t begin = threadIdx.x * kTokensAtOnce; begin < p.vocab; begin += kLoads * kStep) {
    float logits[kLoads][kTokensAtOnce];
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      load_four(row.logits, p.vocab, p.aligned, begin + load * kStep, logits[load]);
    }
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
#pragma unroll
      for (int i = 0; i < kTokensAtOnce; ++i) {
        const float gap = (row.top - logits[load][i]) * p.inverse_temperature;
        if (passes(within, gap, begin + load * kStep + i)) body(gap);
      }
    }
  }
}

struct Found {
  uint32_t bucket;
  uint64_t target;  // the rest of it within the bucket
  uint64_t mass;    // of the bucket
};

// The bucket in which the sums reach the target. share > 0: the target is that share of the total.
__device__ Found find_bucket(const Histogram& histogram, uint64_t target, double share) {
  static_assert(kBuckets == 2 * kBorderThreads);
  __shared__ Found found;
  const unsigned first = 2 * threadIdx.x;
  uint64_t mass[2];
  for (unsigned i = 0; i < 2; ++i) {
    mass[i] = static_cast<uint64_t>(histogram.high[first + i]) << 32 | histogram.low[first + i];
  }
  uint64_t total = 0;
  uint64_t before = block_sum_before(mass[0] + mass[1], &total);
  if (share > 0) target = static_cast<uint64_t>(ceil(share * static_cast<double>(total)));
  if (target > total) target = total;
  if (target < 1) target = 1;
  for (unsigned i = 0; i < 2; ++i) {
    if (before < target && target <= before + mass[i]) found = {first + i, target - before, mass[i]};
    before += mass[i];
  }
  __syncthreads();
  const Found result = found;
  __syncthreads();
  return result;
}

// The id of the nth token, from 1, with this gap.
__device__ int32_t nth_of_gap(const Sampling& p, const RowView& row, float gap, uint64_t nth) {
  __shared__ int32_t found;
  uint64_t seen = 0;
  for (int64_t begin = 0; begin < p.vocab && seen < nth; begin += kBorderThreads) {
    const int64_t id = begin + threadIdx.x;
    const bool equal = id < p.vocab && (row.top - clean(row.logits[id])) * p.inverse_temperature == gap;
    uint64_t total = 0;
    const uint64_t before = seen + block_sum_before(equal ? 1 : 0, &total);
    if (equal && before + 1 == nth) found = static_cast<int32_t>(id);
    seen += total;
  }
  __syncthreads();
  return found;
}

// The border at which the weights of the tokens within `outer` first sum to the target.
__device__ Border find_border(const Sampling& p, const RowView& row, const Border& outer, Weigh weigh, uint64_t target,
                              double share) {
  __shared__ Histogram histogram;
  const int shift = weight_shift(p.vocab);
  uint32_t prefix = 0;
  uint64_t mass = 0;
#pragma unroll 1
  for (int level = 0; level < kLevels; ++level) {
    for (unsigned i = threadIdx.x; i < kBuckets; i += kBorderThreads) histogram.low[i] = histogram.high[i] = 0;
    __syncthreads();
    for_each(p, row, outer, [&](float gap) {
      const uint32_t bits = __float_as_uint(gap) >> kShift[level];
      if (bits >> kBits[level] != prefix) return;
      const uint64_t weight = weight_of(weigh, gap, shift);
      const auto low = static_cast<uint32_t>(weight);
      auto high = static_cast<uint32_t>(weight >> 32);
      const uint32_t bucket = bits & ((1u << kBits[level]) - 1);
      if (low != 0 && atomicAdd(&histogram.low[bucket], low) + low < low) ++high;
      if (high != 0) atomicAdd(&histogram.high[bucket], high);
    });
    __syncthreads();
    const Found found = find_bucket(histogram, target, level == 0 ? share : 0);
    prefix = prefix << kBits[level] | found.bucket;
    target = found.target;
    mass = found.mass;
  }
  // All tokens in the last bucket have one gap, and so one weight.
  const float gap = __uint_as_float(prefix);
  const uint64_t weight = weight_of(weigh, gap, shift), nth = (target + weight - 1) / weight;
  if (nth * weight == mass && outer.gap != gap) return {gap, INT32_MAX};
  return {gap, nth_of_gap(p, row, gap, nth)};
}

// Grid: rows.
__global__ void __launch_bounds__(kBorderThreads) sample_border_kernel(Sampling p) {
  const int64_t index = blockIdx.x;
  const uint64_t top = merged<kBorderThreads>(p.workspace.tops + index * p.parts, p.parts);
  if (!has_token(top)) return;
  const RowView row = {p.logits + index * p.vocab, score_of(top)};
  Border border = kNoBorder;
  if (p.top_k > 0 && p.top_k < p.vocab) {
    border = find_border(p, row, border, Weigh::kOne, static_cast<uint64_t>(p.top_k), 0);
  }
  if (p.top_p < 1.0f) border = find_border(p, row, border, Weigh::kProbability, 0, static_cast<double>(p.top_p));
  if (p.widest < border.gap) border = {p.widest, INT32_MAX};
  if (threadIdx.x == 0) p.workspace.borders[index] = border;
}

// ---- The draw -------------------------------------------------------------------------------------------------------

// Grid: rows x parts.
__global__ void __launch_bounds__(kThreads) sample_draw_kernel(Sampling p) {
  const int64_t index = blockIdx.x;
  const uint64_t top = merged<kThreads>(p.workspace.tops + index * p.parts, p.parts);
  const bool draws = has_token(top);
  const Border border = p.filtered && draws ? p.workspace.borders[index] : kNoBorder;
  const float* row = p.logits + index * p.vocab;
  const int64_t begin = blockIdx.y * kSamplePartTokens, position = p.positions[index];
  uint64_t best = 0;
  for (int64_t at = 0; draws && at < kSamplePartTokens; at += kThreads * kTokensAtOnce) {
    const int64_t id = begin + at + threadIdx.x * kTokensAtOnce;
    float gaps[kTokensAtOnce];
    load_four(row, p.vocab, p.aligned, id, gaps);
    bool any = false;
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) {
      gaps[i] = (score_of(top) - gaps[i]) * p.inverse_temperature;
      any = any || passes(border, gaps[i], id + i);
    }
    if (!any) continue;
    uint32_t words[4];
    philox_words(p.seed, position, id, words);
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) {
      if (passes(border, gaps[i], id + i)) best = larger(best, key_of(gumbel(words[i]) - gaps[i], id + i));
    }
  }
  best = block_largest<kThreads>(best);
  if (threadIdx.x == 0) p.workspace.bests[index * p.parts + blockIdx.y] = best;
}

// ---- The token ------------------------------------------------------------------------------------------------------

// Grid: rows. keys: [rows, parts], the tops if nothing is drawn.
__global__ void __launch_bounds__(32) sample_token_kernel(Sampling p, const uint64_t* keys) {
  const int64_t first = blockIdx.x * static_cast<int64_t>(p.parts);
  const uint64_t top = merged<32>(p.workspace.tops + first, p.parts), key = merged<32>(keys + first, p.parts);
  if (threadIdx.x == 0) p.tokens[blockIdx.x] = has_token(top) ? id_of(key) : no_token(top);
}

// ---- The log-probability of one token -------------------------------------------------------------------------------

// The block's sum, valid in thread 0. The order of the additions is fixed.
template <int kBlockThreads>
__device__ double block_sum(double value) {
  __shared__ double of_warp[kBlockThreads / 32];
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  double sum = 0;
  for (int warp = 0; warp < kBlockThreads / 32; ++warp) sum += of_warp[warp];
  return sum;
}

// Grid: rows.
__global__ void __launch_bounds__(kBorderThreads) token_log_probs_kernel(TokenLogProbsParams p, bool aligned) {
  const float* row = p.logits + blockIdx.x * p.vocab;
  uint64_t best = 0;
  float logits[kTokensAtOnce];
  for (int64_t id = threadIdx.x * kTokensAtOnce; id < p.vocab; id += kBorderThreads * kTokensAtOnce) {
    load_four_raw(row, p.vocab, aligned, id, logits);
    best = with_logits(best, logits, id);
  }
  best = block_largest<kBorderThreads>(best);
  const float top = has_token(best) ? score_of(best) : NAN;
  double sum = 0;  // of e^(logit - top)
  for (int64_t id = threadIdx.x * kTokensAtOnce; id < p.vocab; id += kBorderThreads * kTokensAtOnce) {
    load_four_raw(row, p.vocab, aligned, id, logits);
    float some = 0.0f;
#pragma unroll
    for (int i = 0; i < kTokensAtOnce; ++i) some += id + i < p.vocab ? exponential_of(logits[i] - top) : 0.0f;
    sum += static_cast<double>(some);
  }
  sum = block_sum<kBorderThreads>(sum);
  if (threadIdx.x != 0) return;
  const int32_t token = p.tokens[blockIdx.x];
  const double logit = token < 0 ? static_cast<double>(NAN) : static_cast<double>(row[token]);
  const double log_prob = logit - static_cast<double>(top) - log(sum);
  p.log_probs[blockIdx.x] = log_prob > 0 ? 0.0f : static_cast<float>(log_prob);
}

// =====================================================================================================================

bool in_fours(const float* logits, int64_t vocab) {
  return reinterpret_cast<uintptr_t>(logits) % 16 == 0 && vocab % kTokensAtOnce == 0;
}

Sampling sampling_of(const SampleParams& params) {
  const SamplingSettings& settings = params.settings;
  Sampling p{};
  p.logits = params.logits;
  p.positions = params.positions;
  p.tokens = params.tokens;
  p.vocab = params.vocab;
  p.parts = static_cast<int>(ceil_div(params.vocab, kSamplePartTokens));
  p.workspace.tops = static_cast<uint64_t*>(params.workspace);
  p.workspace.bests = p.workspace.tops + params.rows * p.parts;
  p.workspace.borders = reinterpret_cast<Border*>(p.workspace.bests + params.rows * p.parts);
  p.aligned = in_fours(params.logits, params.vocab);
  p.filtered = settings.top_k > 0 || settings.top_p < 1.0f || settings.min_p > 0.0f;
  const float inverse = 1.0f / settings.temperature;
  p.inverse_temperature = inverse < FLT_MAX ? inverse : FLT_MAX;
  p.widest = settings.min_p > 0.0f ? -std::log(settings.min_p) : FLT_MAX;
  p.top_k = settings.top_k;
  p.top_p = settings.top_p;
  p.seed = settings.seed;
  return p;
}

}  // namespace

void sample(const SampleParams& params, Stream& stream) {
  CHECK(params.workspace != nullptr);
  const Sampling p = sampling_of(params);
  CudaStream& on = cuda_stream(stream);
  const Grid parts = {params.rows, p.parts, kThreads};
  launch_on(on, "sample_top", parts, sample_top_kernel, p);
  const uint64_t* keys = p.workspace.tops;
  if (params.settings.temperature > 0.0f) {
    if (p.filtered) launch_on(on, "sample_border", {params.rows, 1, kBorderThreads}, sample_border_kernel, p);
    launch_on(on, "sample_draw", parts, sample_draw_kernel, p);
    keys = p.workspace.bests;
  }
  launch_on(on, "sample_token", {params.rows, 1, 32}, sample_token_kernel, p, keys);
}

void token_log_probs(const TokenLogProbsParams& params, Stream& stream) {
  launch_on(cuda_stream(stream), "token_log_probs", {params.rows, 1, kBorderThreads}, token_log_probs_kernel, params,
            in_fours(params.logits, params.vocab));
}

}  // namespace headrace::kernels::cuda
