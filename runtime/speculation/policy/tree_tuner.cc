#include "runtime/speculation/policy/tree_tuner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace headrace {
namespace {

constexpr int64_t kSizes[] = {2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128};
constexpr int64_t kWarmUp = 6;         // steps: two at each of three places
constexpr int64_t kExploreEvery = 20;  // steps, of which two explore
constexpr double kMemory = 0.98;       // remaining weight of a sample one step later
constexpr double kPriorSteps = 8;      // the prior gain of a size counts as much as so many steps

// The approximate gain of EAGLE-like drafts from a larger tree: the prior.
double usual_growth(int64_t from, int64_t to) {
  const double doublings = std::log2(static_cast<double>(to) / static_cast<double>(from));
  return 1 + (to <= 8 ? 0.3 : 0.1) * doublings;
}

// y at x: linear interpolation between known points, or extrapolation of the last two.
struct Line {
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  int points = 0;
  void add(double x, double y) {  // in ascending order of x, up to the first point beyond
    x0 = x1, y0 = y1, x1 = x, y1 = y;
    ++points;
  }
  double at(double x) const {
    if (points < 2) return y1;
    return std::max(y0 + (y1 - y0) * (x - x0) / (x1 - x0), x > x1 ? y1 : std::min(y0, y1) / 2);
  }
};

}  // namespace

TreeTuner::TreeTuner(const TunerOptions& options) : options_(options) {
  CHECK(options.largest.nodes >= 2 && options.largest.levels >= 1, "nodes=", options.largest.nodes,
        " levels=", options.largest.levels);
  for (const int64_t size : kSizes) {
    if (size < options.largest.nodes) sizes_.push_back(size);
  }
  sizes_.push_back(options.largest.nodes);
  verify_.resize(sizes_.size());
  draft_.resize(static_cast<size_t>(options.largest.levels));
  gains_.assign(sizes_.size(), std::vector<Gain>(draft_.size()));
}

// ---- results of a step ----------------------------------------------------------------------------------------------

double TreeTuner::Gain::predicted_growth(double otherwise) const {
  return predicted_below > 0 ? std::max(1.0, predicted_here / predicted_below) : otherwise;
}

// Orders the nodes by score, and finds the smallest tree that contains each accepted node.
void TreeTuner::rank(const Tree& tree, const Acceptance& acceptance) {
  order_.resize(static_cast<size_t>(tree.size()));
  std::iota(order_.begin(), order_.end(), 0);
  if (!tree.scores.empty()) {
    std::stable_sort(order_.begin() + 1, order_.end(), [&](int32_t a, int32_t b) {
      return tree.scores[static_cast<size_t>(a)] > tree.scores[static_cast<size_t>(b)];
    });
  }
  needed_.clear();
  int64_t most = 2;
  for (size_t i = 1; i < acceptance.nodes.size(); ++i) {  // a parent's score is at least its children's
    const auto at = std::find(order_.begin(), order_.end(), acceptance.nodes[i]);
    most = std::max(most, static_cast<int64_t>(at - order_.begin()) + 1);
    needed_.push_back(most);
  }
}

// A node's score is the logarithm of the draft's estimate that it is accepted.
void TreeTuner::predict(const Tree& tree) {
  const size_t levels = draft_.size();
  predicted_.assign(sizes_.size() * levels, 0);
  if (tree.scores.empty()) return;
  level_sums_.assign(levels, 0);
  size_t node = 1;
  for (size_t size = 0; size < sizes_.size(); ++size) {
    for (; node < order_.size() && static_cast<int64_t>(node) < sizes_[size]; ++node) {
      const size_t at = static_cast<size_t>(order_[node]);
      const size_t depth = std::min(static_cast<size_t>(tree.depths[at]), levels);
      level_sums_[depth - 1] += std::exp(static_cast<double>(tree.scores[at]));
    }
    const auto here = predicted_.begin() + static_cast<std::ptrdiff_t>(size * levels);
    std::partial_sum(level_sums_.begin(), level_sums_.end(), here);
  }
}

void TreeTuner::learn(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance) {
  rank(tree, acceptance);
  predict(tree);
  const size_t all = draft_.size();
  const auto accepted = [&](size_t size, size_t levels) {
    double count = 0;
    for (size_t i = 0; i < std::min(needed_.size(), levels) && needed_[i] <= sizes_[size]; ++i) ++count;
    return count;
  };
  first_sum_ = first_sum_ * kMemory + accepted(0, 1);
  first_steps_ = first_steps_ * kMemory + 1;
  for (size_t size = 1; size < sizes_.size() && sizes_[size] <= limits.nodes; ++size) {
    for (size_t level = 0; level < all && static_cast<int64_t>(level) < limits.levels; ++level) {
      Gain& gain = gains_[size][level];
      gain.here = gain.here * kMemory + accepted(size, level + 1);
      gain.below = gain.below * kMemory + accepted(size - 1, level + 1);
      gain.predicted_here = gain.predicted_here * kMemory + predicted_[size * all + level];
      gain.predicted_below = gain.predicted_below * kMemory + predicted_[(size - 1) * all + level];
    }
  }
}

// Expected accepted tokens per step for trees of up to this size, [level - 1]: the smallest size's mean, then ratios of
// neighbouring sizes.
void TreeTuner::expect(size_t size, std::vector<double>* by_levels) const {
  const double first = first_sum_ / first_steps_, believed = kPriorSteps * first;
  by_levels->assign(draft_.size(), first);
  for (size_t s = 1; s <= size; ++s) {
    const double usual = usual_growth(sizes_[s - 1], sizes_[s]);
    for (size_t level = 0; level < by_levels->size(); ++level) {
      const Gain& gain = gains_[s][level];
      const double growth = gain.predicted_growth(level == 0 ? 1 : usual);
      (*by_levels)[level] *= (gain.here + believed * growth) / (gain.below + believed);
    }
  }
  for (size_t level = 1; level < by_levels->size(); ++level) {
    (*by_levels)[level] = std::max((*by_levels)[level], (*by_levels)[level - 1]);
  }
}

// ---- costs ----------------------------------------------------------------------------------------------------------

double TreeTuner::verify_ms(size_t size) const {
  Line line;
  for (size_t s = 0; s < sizes_.size(); ++s) {
    if (!verify_[s].known()) continue;
    if (s == size) return verify_[s].value();
    line.add(static_cast<double>(sizes_[s]), verify_[s].value());
    if (s > size && line.points >= 2) break;
  }
  return line.at(static_cast<double>(sizes_[size]));
}

double TreeTuner::draft_ms(int64_t levels) const {
  Line line;
  for (size_t l = 0; l < draft_.size(); ++l) {
    const int64_t here = static_cast<int64_t>(l) + 1;
    if (!draft_[l].known()) continue;
    if (here == levels) return draft_[l].value();
    line.add(static_cast<double>(here), draft_[l].value());
    if (here > levels && line.points >= 2) break;
  }
  return line.at(static_cast<double>(levels));
}

// ---- the choice -----------------------------------------------------------------------------------------------------

TreeTuner::Choice TreeTuner::near(const TreeLimits& limits, double scale, int64_t levels) const {
  const int64_t wanted = static_cast<int64_t>(static_cast<double>(limits.nodes) * scale);
  Choice choice;
  while (choice.size + 1 < sizes_.size() && sizes_[choice.size + 1] <= wanted) ++choice.size;
  choice.levels = std::clamp<int64_t>(levels, 1, options_.largest.levels);
  return choice;
}

// At most twice the largest size, and one level more than the deepest, that have been tried.
TreeTuner::Choice TreeTuner::best() const {
  int64_t tried = 2, deepest = 1;
  for (size_t s = 0; s < sizes_.size(); ++s) {
    if (verify_[s].known()) tried = sizes_[s];
  }
  for (size_t l = 0; l < draft_.size(); ++l) {
    if (draft_[l].known()) deepest = static_cast<int64_t>(l) + 1;
  }
  deepest = std::min(deepest + 1, options_.largest.levels);
  Choice choice;
  double most = -1;
  std::vector<double> gains;
  for (size_t s = 0; s < sizes_.size() && sizes_[s] <= 2 * tried; ++s) {
    expect(s, &gains);
    for (int64_t levels = 1; levels <= std::min(deepest, sizes_[s] - 1); ++levels) {
      const double tokens = 1 + gains[static_cast<size_t>(levels - 1)];
      const double rate = tokens / std::max(1e-6, draft_ms(levels) + verify_ms(s));
      if (rate > most) {
        most = rate;
        choice = {.size = s, .levels = levels};
      }
    }
  }
  return choice;
}

TreeLimits TreeTuner::next() const {
  const TreeLimits& start = options_.start;
  if (steps_ < kWarmUp) {
    constexpr double kScales[] = {1, 2, 0.5};
    constexpr int64_t kLevels[] = {0, 2, -2};
    const size_t place = static_cast<size_t>(steps_ / 2);
    return limits_of(near(start, kScales[place], start.levels + kLevels[place]));
  }
  Choice choice = best();
  if (steps_ % kExploreEvery < 2) {
    choice.size = std::min(choice.size + 1, sizes_.size() - 1);
    choice.levels = std::min(choice.levels + 1, options_.largest.levels);
  }
  return limits_of(choice);
}

void TreeTuner::record(const TreeLimits& limits, const Tree& tree, const Acceptance& acceptance, double draft_ms,
                       double verify_ms) {
  const Choice used = near(limits, 1, limits.levels);
  verify_[used.size].add(verify_ms);
  draft_[static_cast<size_t>(used.levels - 1)].add(draft_ms);
  learn(limits, tree, acceptance);
  ++steps_;
}

}  // namespace headrace
