#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/sample/bodies.h"
#include "kernels/sample/cpu_isa.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr SampleBorder kNoBorder = {std::numeric_limits<float>::max(), std::numeric_limits<int32_t>::max()};

bool passes(const SampleBorder& border, float gap, int64_t id) {
  return gap < border.gap || (gap == border.gap && id <= border.id);
}

// Calls body(id, gap, weight) for each token within the border, in order of id, until it returns false.
template <typename Body>
void for_each(const SampleRow& row, const SampleBorder& within, const Body& body) {
  constexpr int64_t kChunk = 512;
  float gaps[kChunk], weights[kChunk];
  for (int64_t first = 0; first < row.vocab; first += kChunk) {
    const int64_t count = std::min(kChunk, row.vocab - first);
    HEADRACE_PICK_ISA(sample_kernels).gaps(row, first, count, gaps, weights);
    for (int64_t i = 0; i < count; ++i) {
      if (passes(within, gaps[i], first + i) && !body(first + i, gaps[i], weights[i])) return;
    }
  }
}

enum class Weigh { kOne, kProbability };

// Finds the border at which the weights of the tokens within `outer` first sum to the target: a count, or a share of
// their sum. A radix select over the bits of the gaps, without sorting or storing; sums are taken by bucket and, within
// a bucket, by id.
SampleBorder find_border(const SampleRow& row, const SampleBorder& outer, Weigh weigh, double target) {
  constexpr int kLevels = 3, kShift[kLevels] = {21, 10, 0}, kBits[kLevels] = {10, 11, 10};
  constexpr uint32_t kMaxBuckets = 1 << 11;
  const auto weight_of = [&](float weight) { return weigh == Weigh::kOne ? 1.0 : static_cast<double>(weight); };
  uint32_t prefix = 0;
  for (int level = 0; level < kLevels; ++level) {
    double mass[kMaxBuckets] = {};
    bool any[kMaxBuckets] = {};
    for_each(row, outer, [&](int64_t, float gap, float weight) {
      const uint32_t bits = std::bit_cast<uint32_t>(gap) >> kShift[level];
      if (bits >> kBits[level] != prefix) return true;
      const uint32_t bucket = bits & ((1u << kBits[level]) - 1);
      mass[bucket] += weight_of(weight);
      any[bucket] = true;
      return true;
    });
    if (level == 0 && weigh == Weigh::kProbability) {
      double total = 0;
      for (double m : mass) total += m;
      target *= total;
    }
    // Rounding may leave some of the target beyond the last bucket; then the border is in the last one.
    uint32_t found = 0;
    for (uint32_t bucket = 0; bucket < kMaxBuckets; ++bucket) {
      if (!any[bucket]) continue;
      found = bucket;
      if (mass[bucket] >= target) break;
      target -= mass[bucket];
    }
    prefix = prefix << kBits[level] | found;
  }
  SampleBorder border = {std::bit_cast<float>(prefix), 0};
  for_each(row, outer, [&](int64_t id, float gap, float weight) {
    if (gap != border.gap) return true;
    border.id = id;
    target -= weight_of(weight);
    return target > 0;
  });
  return border;
}

SampleBorder filter(const SampleRow& row, const SamplingSettings& settings) {
  SampleBorder border = kNoBorder;
  if (settings.top_k > 0 && settings.top_k < row.vocab) {
    border = find_border(row, border, Weigh::kOne, settings.top_k);
  }
  if (settings.top_p < 1.0f) border = find_border(row, border, Weigh::kProbability, settings.top_p);
  const float widest = settings.min_p > 0.0f ? -std::log(settings.min_p) : kNoBorder.gap;
  if (widest < border.gap) border = {widest, kNoBorder.id};
  return border;
}

float log_prob_of(const float* logits, int64_t vocab, int32_t token) {
  constexpr int64_t kChunk = 512;
  const SampleKernels& kernels = HEADRACE_PICK_ISA(sample_kernels);
  const float top = kernels.largest(logits, vocab);
  if (!std::isfinite(top) || token < 0) return std::numeric_limits<float>::quiet_NaN();
  float gaps[kChunk], weights[kChunk];
  double sum = 0;  // of e^(logit - top)
  for (int64_t first = 0; first < vocab; first += kChunk) {
    const int64_t count = std::min(kChunk, vocab - first);
    kernels.gaps({logits, vocab, top, 1.0f}, first, count, gaps, weights);
    for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(weights[i]);
  }
  const double log_prob = static_cast<double>(logits[token]) - static_cast<double>(top) - std::log(sum);
  return static_cast<float>(std::min(log_prob, 0.0));
}

}  // namespace

void token_log_probs(const TokenLogProbsParams& params, ThreadPool& pool) {
  pool.parallel_for(params.rows, [&](int64_t row, int) {
    params.log_probs[row] = log_prob_of(params.logits + row * params.vocab, params.vocab, params.tokens[row]);
  });
}

void sample(const SampleParams& params, ThreadPool& pool) {
  const SamplingSettings& settings = params.settings;
  const SampleKernels& kernels = HEADRACE_PICK_ISA(sample_kernels);
  pool.parallel_for(params.rows, [&](int64_t index, int) {
    const float* logits = params.logits + index * params.vocab;
    const float top = kernels.largest(logits, params.vocab);
    int64_t token = 0;
    if (std::isnan(top)) {
      token = kNanLogit;
    } else if (std::isinf(top)) {
      token = top > 0 ? kInfiniteLogit : kNoFiniteLogit;
    } else if (settings.temperature == 0) {
      token = kernels.first_of(logits, params.vocab, top);
    } else {
      const float inverse = std::min(1.0f / settings.temperature, std::numeric_limits<float>::max());
      const SampleRow row = {logits, params.vocab, top, inverse};
      token = kernels.draw(row, filter(row, settings), settings.seed, params.positions[index]);
    }
    params.tokens[index] = static_cast<int32_t>(token);
  });
}

}  // namespace headrace::kernels::cpu
