#include "runtime/speculation/policy/tree_trimmer.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr double kTrustMemory = 0.95;  // remaining weight of a step one step later
constexpr double kWorthless = 1;       // tokens a step that a tree must promise while the root's own cost is unknown

}  // namespace

// Interpolated between sizes that are known. Beyond the largest, nodes are free until one was tried.
double TreeTrimmer::cost(size_t size) const {
  size_t below = size, above = size;
  while (below > 0 && !known(below)) --below;
  while (above + 1 < kSizes.size() && !known(above)) ++above;
  if (!known(above)) return known(below) ? costs_[below].value() : 1;
  if (!known(below) || above == below) return costs_[above].value();
  const double share =
      static_cast<double>(kSizes[size] - kSizes[below]) / static_cast<double>(kSizes[above] - kSizes[below]);
  return costs_[below].value() + share * (costs_[above].value() - costs_[below].value());
}

void TreeTrimmer::trim(Tree* tree) {
  first_level_.clear();
  first_expected_ = 0;
  for (size_t i = 1; i < tree->tokens.size(); ++i) {
    if (tree->depths[i] != 1) continue;
    first_level_.push_back(tree->tokens[i]);
    first_expected_ += std::exp(static_cast<double>(tree->scores[i]));
  }
  const double log_trust = std::min(0.0, std::log(trust()));
  double tokens = 1, most = 0;
  int64_t best = 1, node = 1;
  for (size_t size = 0; size < kSizes.size() && kSizes[size] <= tree->size(); ++size) {
    for (; node < kSizes[size]; ++node) {
      const auto at = static_cast<size_t>(node);
      tokens += std::exp(static_cast<double>(tree->scores[at]) + log_trust * tree->depths[at]);
    }
    const double rate = tokens / cost(size);
    if (rate > most) most = rate, best = kSizes[size];
  }
  if (!known(0) && tokens < 1 + kWorthless) best = 1;
  tree->cut(best);
}

void TreeTrimmer::record(const Tree& tree, int32_t next, double ms) {
  const auto size = std::find(kSizes.begin(), kSizes.end(), tree.size());
  if (size != kSizes.end()) costs_[static_cast<size_t>(size - kSizes.begin())].add(ms);
  if (first_level_.empty()) return;
  const bool right = std::find(first_level_.begin(), first_level_.end(), next) != first_level_.end();
  right_ = right_ * kTrustMemory + (right ? 1 : 0);
  expected_ = expected_ * kTrustMemory + first_expected_;
  first_level_.clear();
}

}  // namespace headrace
