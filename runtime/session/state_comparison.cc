#include "runtime/session/state_comparison.h"

#include <algorithm>
#include <cmath>

#include "cache/base.h"

namespace headrace {
namespace {

// log of the sum of exp(x - largest)
double log_sum(std::span<const float> logits, float largest) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - static_cast<double>(largest));
  return std::log(sum);
}

}  // namespace

Divergence divergence(std::span<const float> reference, std::span<const float> logits) {
  CHECK(reference.size() == logits.size() && !logits.empty(), "logits of ", reference.size(), " and ", logits.size());
  const auto p_first = std::max_element(reference.begin(), reference.end());
  const auto q_first = std::max_element(logits.begin(), logits.end());
  const double p_sum = log_sum(reference, *p_first), q_sum = log_sum(logits, *q_first);
  double kl = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double p = static_cast<double>(reference[i]) - static_cast<double>(*p_first) - p_sum;
    const double q = static_cast<double>(logits[i]) - static_cast<double>(*q_first) - q_sum;
    kl += std::exp(p) * (p - q);
  }
  return {.kl = static_cast<float>(kl), .same_first = p_first - reference.begin() == q_first - logits.begin()};
}

}  // namespace headrace
