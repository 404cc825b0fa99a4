// How much of a looked-up tree a step verifies: its likeliest nodes, as many as make the most tokens a second, or the
// root alone. Look-up is right about one text more often than about another, and what a node costs differs from machine
// to machine. Pure: results and costs are passed in, and it has no clock.
//
// The token after the root tells whether the tree's first level was right, even if that was cut away. So the share that
// was right, over the share that was expected, corrects the likelihood of a node at every step of its path. A cost
// counts from its second sample, because a GPU records a graph in the first; for the same reason the sizes are few. It
// is then the smaller of the two, so that one step that was disturbed does not end the use of a size.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "runtime/speculation/policy/running_cost.h"
#include "runtime/speculation/tree.h"

namespace headrace {

class TreeTrimmer {
 public:
  // Cuts off the last nodes. REQUIRES: the nodes below the root are in the order of their scores, the highest first.
  void trim(Tree* tree);
  // The result of the step with that tree: the token behind its root, and the time from proposal to commit.
  void record(const Tree& tree, int32_t next, double ms);

 private:
  static constexpr std::array<int64_t, 12> kSizes = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64};

  double trust() const { return (right_ + 1) / (expected_ + 1); }
  bool known(size_t size) const { return costs_[size].count > 1; }
  double cost(size_t size) const;

  std::array<RecentCost, kSizes.size()> costs_{};
  std::vector<int32_t> first_level_;  // tokens of the latest tree, before it was cut
  double first_expected_ = 0;         // the sum of their likelihoods
  double right_ = 0, expected_ = 0;   // sums over steps, decaying
};

}  // namespace headrace
