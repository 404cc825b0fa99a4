#include "kernels/cpu/sample.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace headrace::kernels::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A NaN is never chosen, and +inf is the largest float.
float clean(float logit) { return std::isnan(logit) ? -kInfinity : std::min(logit, std::numeric_limits<float>::max()); }

// A row as the filters see it. A token's gap is how far it lies under the likeliest one, over T: its probability is
// e^-gap times the likeliest one's. Gaps are >= 0, so their bits are in their order; inf is never chosen.
struct Row {
  const float* logits;
  int64_t vocab;
  float top, inverse_temperature;

  float gap(int64_t id) const { return (top - clean(logits[id])) * inverse_temperature; }
};

// What a filter lets pass: the tokens up to this one in the order of (gap, id).
struct Border {
  float gap = std::numeric_limits<float>::max();
  int64_t id = std::numeric_limits<int64_t>::max();

  bool passes(float other_gap, int64_t other_id) const {
    return other_gap < gap || (other_gap == gap && other_id <= id);
  }
};

enum class Weigh { kOne, kProbability };

float weight(Weigh weigh, float gap) { return weigh == Weigh::kOne ? 1.0f : std::exp(-gap); }

// Finds the border at which the weights of the tokens within `outer` first sum to `share` of `total` (0: of their
// sum). A radix select over the bits of the gaps, so that nothing is sorted and nothing stored; the order of the sums
// is by bucket and, in a bucket, by id.
Border find_border(const Row& row, const Border& outer, Weigh weigh, double share, double total) {
  constexpr int kShifts[] = {21, 10, 0};
  constexpr int kBits[] = {10, 11, 10};
  uint32_t prefix = 0;
  double target = share * total;
  for (int level = 0; level < 3; ++level) {
    double mass[1 << 11] = {};
    bool any[1 << 11] = {};
    const int shift = kShifts[level], above = shift + kBits[level];
    for (int64_t id = 0; id < row.vocab; ++id) {
      const float gap = row.gap(id);
      const uint32_t bits = std::bit_cast<uint32_t>(gap);
      if (bits >> above != prefix || !outer.passes(gap, id)) continue;
      const uint32_t bucket = bits >> shift & ((1u << kBits[level]) - 1);
      mass[bucket] += weight(weigh, gap);
      any[bucket] = true;
    }
    if (level == 0 && total == 0) {
      for (double m : mass) target += share * m;
    }
    uint32_t found = 0;
    for (uint32_t bucket = 0; bucket < 1u << kBits[level]; ++bucket) {
      if (!any[bucket]) continue;
      found = bucket;
      if (mass[bucket] >= target) break;
      target -= mass[bucket];
    }
    // Rounding may leave a little of the target beyond the last bucket; then the last one is the border.
    prefix = prefix << kBits[level] | found;
  }
  Border border{std::bit_cast<float>(prefix), 0};
  for (int64_t id = 0; id < row.vocab && target > 0; ++id) {
    if (row.gap(id) != border.gap || !outer.passes(border.gap, id)) continue;
    border.id = id;
    target -= weight(weigh, border.gap);
  }
  return border;
}

Border filter(const Row& row, const SamplingSettings& settings) {
  Border border;
  if (settings.top_k > 0 && settings.top_k < row.vocab) {
    border = find_border(row, border, Weigh::kOne, 1.0, settings.top_k);
  }
  if (settings.top_p < 1.0f) border = find_border(row, border, Weigh::kProbability, settings.top_p, 0);
  if (settings.min_p > 0.0f) {
    const float widest = -std::log(settings.min_p);
    if (widest < border.gap) border = {widest, row.vocab};
  }
  return border;
}

float largest(const float* logits, int64_t vocab) {
  float top = -kInfinity;
  for (int64_t i = 0; i < vocab; ++i) top = std::max(top, clean(logits[i]));
  return top;
}

int32_t sample_row(const Row& row, const SamplingSettings& settings, int64_t position) {
  const Border border = filter(row, settings);
  int32_t best = 0;
  float best_score = -kInfinity;
  for (int64_t id = 0; id < row.vocab; ++id) {
    const float gap = row.gap(id);
    if (!border.passes(gap, id)) continue;
    const float score = sampling_gumbel(settings.seed, position, static_cast<int32_t>(id)) - gap;
    if (score > best_score) {
      best_score = score;
      best = static_cast<int32_t>(id);
    }
  }
  return best;
}

int32_t first_of(const float* logits, int64_t vocab, float value) {
  for (int64_t i = 0; i < vocab; ++i) {
    if (clean(logits[i]) == value) return static_cast<int32_t>(i);
  }
  return 0;
}

}  // namespace

void sample(const SampleParams& params, ThreadPool& pool) {
  const SamplingSettings& settings = params.settings;
  pool.parallel_for(params.rows, [&](int64_t index, int) {
    const float* logits = params.logits + index * params.vocab;
    const float top = largest(logits, params.vocab);
    if (settings.temperature == 0 || top == -kInfinity) {
      params.tokens[index] = first_of(logits, params.vocab, top);
      return;
    }
    const float inverse = std::min(1.0f / settings.temperature, std::numeric_limits<float>::max());
    params.tokens[index] = sample_row({logits, params.vocab, top, inverse}, settings, params.positions[index]);
  });
}

}  // namespace headrace::kernels::cpu
