// The CPU bodies of penalties and masks (op.h). Compiled without contraction, as the CUDA bodies are.
#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/sample/bodies.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float penalized(float x, int32_t count, const PenaltySettings& s) {
  const int32_t of_answer = count & (kInPrompt - 1);
  x = x > 0 ? x / s.repetition : x * s.repetition;
  x = x - s.frequency * static_cast<float>(of_answer);
  return of_answer > 0 ? x - s.presence : x;
}

void penalize_row(const PenalizeLogitsParams& p, int64_t row) {
  std::vector<int32_t> way;  // the tokens of the tree before the row's
  for (int32_t node = p.leaves[row]; node >= 0; node = p.parents[node]) {
    if (p.tokens[node] >= 0 && p.tokens[node] < p.vocab) way.push_back(p.tokens[node]);
  }
  CHECK(static_cast<int64_t>(way.size()) <= kMaxPenaltyDepth, "nodes=", way.size());
  std::sort(way.begin(), way.end());
  float* const logits = p.logits + row * p.vocab;
  size_t next = 0;  // of the way
  for (int32_t token = 0; token < p.vocab; ++token) {
    int32_t count = p.counts[token];
    for (; next < way.size() && way[next] == token; ++next) ++count;
    if (count != 0) logits[token] = penalized(logits[token], count, p.settings);
  }
}

void mask_row(const MaskLogitsParams& p, int64_t row) {
  if (p.mask_rows[row] < 0) return;
  const int64_t words = ceil_div(p.vocab, 32);
  const uint32_t* const mask = p.masks + p.mask_rows[row] * words;
  float* const logits = p.logits + row * p.vocab;
  for (int64_t word = 0; word < words; ++word) {
    if (mask[word] == ~uint32_t{0}) continue;
    const int64_t first = word * 32, count = std::min<int64_t>(32, p.vocab - first);
    for (int64_t i = 0; i < count; ++i) {
      float& x = logits[first + i];
      if ((mask[word] >> i & 1) == 0 && x < kInfinity) x = -kInfinity;  // NaN is not less
    }
  }
}

}  // namespace

void penalize_logits(const PenalizeLogitsParams& params, ThreadPool& pool) {
  pool.parallel_for(params.rows, [&](int64_t row, int) { penalize_row(params, row); });
}

void mask_logits(const MaskLogitsParams& params, ThreadPool& pool) {
  pool.parallel_for(params.rows, [&](int64_t row, int) { mask_row(params, row); });
}

}  // namespace headrace::kernels::cpu
