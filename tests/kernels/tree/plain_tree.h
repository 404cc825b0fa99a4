// Trees built the plain way, for the tests of kernels/tree/op.h: every child of every level in one table, sorted as
// a whole. Owns what it was given and made. Thread: one.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "runtime/speculation/policy/tree_policy.h"

namespace headrace::plain_tree {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int32_t kRootToken = 7000, kRootPosition = 911, kCommitted = 400;

// What a draft says: the children of a level's frontier.
struct Level {
  std::vector<float> log_probs;  // [rows, branch], each row in order
  std::vector<int32_t> tokens;
};
using Draft = std::vector<Level>;

enum class Values { kSmooth, kFewKinds, kEqual, kImpossible };

Draft random_draft(const TreeShape& shape, Values kind, uint64_t seed);

// A candidate.
struct Node {
  int32_t token;
  float score;
  int32_t parent;  // in the table; -1: the root
  int32_t depth;
  std::vector<int32_t> path;  // pass rows of the forwards
};

struct Frontier {
  std::vector<float> scores;
  std::vector<int32_t> tokens, parent_rows, positions;
  std::vector<std::vector<int32_t>> paths;
  bool operator==(const Frontier&) const = default;
};

constexpr int64_t kFirstRow = 5;  // of the cache's pass rows

struct Selected {
  int32_t count = 0;
  std::vector<int32_t> tokens, parents, depths, positions, draw_positions;
  std::vector<float> scores;
  std::vector<std::vector<int32_t>> paths;
  bool operator==(const Selected&) const = default;
};

class PlainTree {
 public:
  // `prune`: what a level does not keep is lost, as of beams.
  PlainTree(const TreeShape& shape, const Draft& draft, bool prune);

  // The expected number of accepted tokens of the first `count` levels.
  double expected(size_t count) const;
  // SpecExtend's loop, which judges the level before the last one grown.
  size_t opt_levels() const;
  Selected select(size_t levels, int64_t nodes) const;

  std::vector<Frontier> frontiers;

 private:
  Node& at(int32_t index) { return table_[static_cast<size_t>(index)]; }
  const Node& at(int32_t index) const { return table_[static_cast<size_t>(index)]; }
  std::vector<int32_t> expand(const Level& draft, const TreeLevel& level, const std::vector<int32_t>& frontier,
                              int32_t depth);
  Frontier describe(const std::vector<int32_t>& nodes) const;
  std::vector<int32_t> best(size_t levels, int64_t most) const;

  TreeShape shape_;
  std::vector<Node> table_;
  std::vector<std::vector<int32_t>> levels_;
  std::map<int32_t, int32_t> parent_row_;
};

}  // namespace headrace::plain_tree
