#include "tests/kernels/tree/plain_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

namespace headrace::plain_tree {
namespace {

// The best of some of the table by (score, depth, number).
std::vector<int32_t> best_of(const std::vector<Node>& table, std::vector<int32_t> which, int64_t most) {
  const auto end = which.begin() + std::min(std::ssize(which), most);
  std::partial_sort(which.begin(), end, which.end(), [&](int32_t a, int32_t b) {
    const Node &x = table[static_cast<size_t>(a)], &y = table[static_cast<size_t>(b)];
    if (x.score != y.score) return x.score > y.score;
    return x.depth != y.depth ? x.depth < y.depth : a < b;
  });
  which.erase(end, which.end());
  return which;
}

}  // namespace

Draft random_draft(const TreeShape& shape, Values kind, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::exponential_distribution<float> gap(0.7f);
  Draft draft;
  for (const TreeLevel& level : shape.levels) {
    Level made;
    for (int64_t row = 0; row < level.rows; ++row) {
      std::vector<float> values;
      for (int64_t i = 0; i < level.branch; ++i) {
        float value = -gap(random);
        if (kind == Values::kFewKinds) value = -0.5f * static_cast<float>(random() % 4);
        if (kind == Values::kEqual) value = 0.0f;
        if (kind == Values::kImpossible && random() % 2 == 0) value = -kInfinity;
        values.push_back(value);
        made.tokens.push_back(static_cast<int32_t>(random() % 100000));
      }
      std::sort(values.begin(), values.end(), std::greater<>());
      made.log_probs.insert(made.log_probs.end(), values.begin(), values.end());
    }
    draft.push_back(std::move(made));
  }
  return draft;
}

PlainTree::PlainTree(const TreeShape& shape, const Draft& draft, bool prune) : shape_(shape) {
  std::vector<int32_t> frontier = {-1};
  for (size_t l = 0; l < shape.levels.size(); ++l) {
    const std::vector<int32_t> children = expand(draft[l], shape.levels[l], frontier, static_cast<int32_t>(l));
    frontier = best_of(table_, children, shape.levels[l].width);
    for (size_t slot = 0; slot < frontier.size(); ++slot) {
      Node& node = at(frontier[slot]);
      if (node.parent >= 0) node.path = at(node.parent).path;
      node.path.push_back(static_cast<int32_t>(kFirstRow + 100 * static_cast<int64_t>(l) + static_cast<int64_t>(slot)));
    }
    frontiers.push_back(describe(frontier));
    const std::vector<int32_t> kept =
        prune ? best_of(table_, children, shape.levels[l].keep) : children;  // beams: what is not kept is lost
    levels_.push_back(kept);
  }
}

double PlainTree::expected(size_t count) const {
  double sum = 0;
  for (int32_t node : best(count, shape_.nodes - 1)) sum += std::exp(table_[static_cast<size_t>(node)].score);
  return sum;
}

size_t PlainTree::opt_levels() const {
  double before = 0;
  size_t grown = 1;
  for (;;) {
    ++grown;
    if (grown > levels_.size()) return levels_.size();
    const double now = expected(grown - 1);
    if (!(now - before > static_cast<double>(shape_.threshold))) return grown - 1;
    before = now;
  }
}

std::vector<int32_t> PlainTree::best(size_t levels, int64_t most) const {
  std::vector<int32_t> all;
  for (size_t l = 0; l < levels; ++l) all.insert(all.end(), levels_[l].begin(), levels_[l].end());
  return best_of(table_, all, most);
}

std::vector<int32_t> PlainTree::expand(const Level& draft, const TreeLevel& level, const std::vector<int32_t>& frontier,
                                       int32_t depth) {
  std::vector<int32_t> children;
  for (size_t row = 0; row < frontier.size(); ++row) {
    for (size_t i = 0; i < static_cast<size_t>(level.branch); ++i) {
      const size_t child = row * static_cast<size_t>(level.branch) + i;
      const float score = (frontier[row] < 0 ? 0.0f : at(frontier[row]).score) + draft.log_probs[child];
      children.push_back(static_cast<int32_t>(table_.size()));
      parent_row_[children.back()] = static_cast<int32_t>(row);
      table_.push_back({draft.tokens[child], score, frontier[row], depth + 1, {}});
    }
  }
  return children;
}

Frontier PlainTree::describe(const std::vector<int32_t>& nodes) const {
  Frontier result;
  for (int32_t node : nodes) {
    result.scores.push_back(at(node).score);
    result.tokens.push_back(at(node).token);
    result.parent_rows.push_back(parent_row_.at(node));
    result.positions.push_back(kCommitted + static_cast<int32_t>(at(node).path.size()) - 1);
    result.paths.push_back(at(node).path);
  }
  return result;
}

Selected PlainTree::select(size_t levels, int64_t nodes) const {
  std::vector<int32_t> chosen = best(levels, nodes - 1);
  std::sort(chosen.begin(), chosen.end());
  Selected tree{.tokens = {kRootToken},
                .parents = {-1},
                .depths = {0},
                .positions = {kRootPosition},
                .draw_positions = {kRootPosition + 1},
                .scores = {0.0f},
                .paths = {{0}}};
  std::map<int32_t, int32_t> node_of = {{-1, 0}};
  for (int32_t candidate : chosen) {
    const Node& node = at(candidate);
    const auto index = static_cast<int32_t>(tree.tokens.size());
    EXPECT_TRUE(node_of.count(node.parent) == 1) << "a parent is missing";
    node_of[candidate] = index;
    tree.tokens.push_back(node.token);
    tree.parents.push_back(node_of[node.parent]);
    tree.depths.push_back(node.depth);
    tree.scores.push_back(node.score);
    tree.positions.push_back(kRootPosition + node.depth);
    tree.draw_positions.push_back(kRootPosition + node.depth + 1);
    tree.paths.push_back(tree.paths[static_cast<size_t>(tree.parents.back())]);
    tree.paths.back().push_back(index);
  }
  tree.count = static_cast<int32_t>(tree.tokens.size());
  return tree;
}

}  // namespace headrace::plain_tree
