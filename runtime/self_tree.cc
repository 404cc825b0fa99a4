#include "runtime/self_tree.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

constexpr double kForget = 0.99;

}  // namespace

SelfTree::SelfTree(const SelfTreeLimits& limits) : limits_(limits) {
  CHECK(limits.width > 0 && limits.nodes > 0 && limits.nodes <= kMaxPassNodes, "nodes=", limits.nodes);
  evidence_[3] = 1;  // until something has been seen
  const size_t most = static_cast<size_t>(limits.nodes);
  nodes_.reserve(most);
  tokens_.reserve(most * (kSelfRanked + 1));
  log_probs_.reserve(most * kSelfRanked);
  candidates_.reserve(most * kSelfRanked);
}

void SelfTree::begin(int32_t root) {
  begun_ = true;
  tree_.reset(root);
  nodes_.assign(1, Node{});
  tokens_.clear();
  log_probs_.clear();
  candidates_.clear();
  deepest_ = computed_ = steps_ = 0;
  expected_ = 1;
}

double SelfTree::sharpness() const {
  return kSharpness[static_cast<size_t>(std::max_element(evidence_.begin(), evidence_.end()) - evidence_.begin())];
}

// That each of a node's ranked tokens is the right one, if its path is.
std::array<double, kSelfRanked> SelfTree::chances(int32_t ranked, double sharpness) const {
  std::array<double, kSelfRanked> out{};
  const float* const log_probs = log_probs_.data() + ranked;
  double sum = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = std::exp(sharpness * static_cast<double>(log_probs[i] - log_probs[0]));
    sum += out[i];
  }
  const double among = 1 - missed_ / seen_;
  for (double& chance : out) chance *= among / sum;
  return out;
}

void SelfTree::rank(int64_t first, const Ranked& ranked) {
  const int64_t count = tree_.size() - first;
  CHECK(static_cast<int64_t>(ranked.samples.size()) >= count && ranked.tokens.size() == ranked.log_probs.size());
  const double sharp = sharpness();
  for (int64_t i = 0; i < count; ++i) {
    Node& node = nodes_[static_cast<size_t>(first + i)];
    node.children = static_cast<int32_t>(tokens_.size());
    const int32_t sample = ranked.samples[static_cast<size_t>(i)];
    const auto row = ranked.tokens.subspan(static_cast<size_t>(i * kSelfRanked), kSelfRanked);
    const auto row_log_probs = ranked.log_probs.subspan(static_cast<size_t>(i * kSelfRanked), kSelfRanked);
    // The sample leads; where filters forbid what ranks above it, with that one's chance.
    tokens_.push_back(sample);
    for (const int32_t token : row) {
      if (token != sample) tokens_.push_back(token);
    }
    tokens_.resize(static_cast<size_t>(node.children) + kSelfRanked);
    log_probs_.insert(log_probs_.end(), row_log_probs.begin(), row_log_probs.end());
    const std::array<double, kSelfRanked> chance = chances(node.children, sharp);
    for (size_t j = 0; j < kSelfRanked; ++j) {
      if (node.chance * chance[j] < limits_.least) break;
      candidates_.push_back({.token = tokens_[static_cast<size_t>(node.children) + j],
                             .parent = static_cast<int32_t>(first + i),
                             .chance = node.chance * chance[j]});
    }
  }
  computed_ = tree_.size();
  ++steps_;
}

// The likeliest candidates come first, at most `count`; of equals, that of the earlier node. Returns how many.
size_t SelfTree::bring_forward(int64_t count, int64_t most_depth) {
  const auto too_deep = [&](const Candidate& c) { return tree_.depths[static_cast<size_t>(c.parent)] >= most_depth; };
  std::erase_if(candidates_, too_deep);  // the run ends before it
  const size_t kept = std::min(candidates_.size(), static_cast<size_t>(std::max<int64_t>(0, count)));
  std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(kept), candidates_.end(),
                    [](const Candidate& a, const Candidate& b) {
                      if (a.chance != b.chance) return a.chance > b.chance;
                      return a.parent != b.parent ? a.parent < b.parent : a.token < b.token;
                    });
  return kept;
}

int64_t SelfTree::add_best(int64_t count, int64_t most_depth) {
  const int64_t first = tree_.size();
  const size_t best = bring_forward(count, most_depth);
  for (size_t i = 0; i < best; ++i) {
    const Candidate& candidate = candidates_[i];
    const int32_t node = tree_.add(candidate.token, candidate.parent);
    nodes_.push_back({.chance = candidate.chance});
    deepest_ = std::max(deepest_, static_cast<int64_t>(tree_.depths[static_cast<size_t>(node)]));
    expected_ += candidate.chance;
  }
  candidates_.erase(candidates_.begin(), candidates_.begin() + static_cast<int64_t>(best));
  return first;
}

int64_t SelfTree::extend(int64_t most_depth) {
  if (computed_ == 0) return 0;  // the root itself
  return add_best(std::min(limits_.width, limits_.nodes - tree_.size()), most_depth);
}

void SelfTree::fill(int64_t most_depth) { add_best(limits_.nodes - tree_.size(), most_depth); }

double SelfTree::foretold_growth(int64_t most_depth) {
  const size_t best = bring_forward(std::min(limits_.width, limits_.nodes - tree_.size()), most_depth);
  double growth = 0;
  for (size_t i = 0; i < best; ++i) growth += candidates_[i].chance;
  return growth;
}

SelfTree::Verdict SelfTree::learn(std::span<const int32_t> samples, const Acceptance& acceptance) {
  Verdict verdict;
  for (const int32_t right : acceptance.nodes) {
    const Node& node = nodes_[static_cast<size_t>(right)];
    if (node.children < 0) continue;
    const int32_t truth = samples[static_cast<size_t>(right)];
    const int32_t* const row = tokens_.data() + node.children;
    const int64_t place = std::find(row, row + kSelfRanked, truth) - row;
    seen_ = seen_ * kForget + 1;
    missed_ = missed_ * kForget + (place == kSelfRanked ? 1 : 0);
    if (place < kSelfRanked) {
      for (size_t i = 0; i < kSharpness.size(); ++i) {
        const double chance = chances(node.children, kSharpness[i])[static_cast<size_t>(place)];
        evidence_[i] = evidence_[i] * kForget + std::log(std::max(chance, 1e-6));
      }
    }
    if (verdict.overturned > 0) continue;
    ++verdict.judged;
    if (place != 0) verdict.overturned = 1;
  }
  if (verdict.overturned > 0) {  // the first choices up to the wrong one, and the root
    verdict.rescued = static_cast<int64_t>(acceptance.nodes.size()) - verdict.judged;
  }
  return verdict;
}

}  // namespace headrace
