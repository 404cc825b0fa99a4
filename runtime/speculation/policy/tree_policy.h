// The shapes of the trees that drafts propose, as data: how many children each level ranks, keeps and forwards. One
// description for EAGLE-2's dynamic tree, OPT-Tree, beams and a chain; kernels/tree/op.h executes it.
// Pure; plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tree/op.h"
#include "runtime/speculation/tree.h"

namespace headrace {

static_assert(kMaxTreeNodes == kMaxDraftNodes);
constexpr int64_t kMaxTreeDepth = kMaxTreeNodes - 1;

// As in TreeGrowParams.
struct TreeLevel {
  int64_t rows, branch, width, keep, first_candidate;
};

struct TreeShape {
  int64_t nodes = 1;              // of the tree, the root included: rows of the target's pass
  float threshold = -1.0f;        // TreeGrowParams
  std::vector<TreeLevel> levels;  // one draft forward each, of `rows` rows; the first is the root's

  int64_t deepest() const { return static_cast<int64_t>(levels.size()); }
  int64_t candidates() const;  // of all levels
  int64_t widest() const;      // most rows that a level forwards
  // The shape of a step within `limits`: without rankings and forwards that could not be in its tree.
  TreeShape within(const TreeLimits& limits) const;
};

// A shape never has more nodes than its levels give. REQUIRES: arguments that parse_tree() allows.
//
// EAGLE-2: the root's `branch` best children, then `depth` times the children of a level's `branch` best: nodes reach
// depth + 1, as EAGLE counts.
TreeShape eagle2_shape(int64_t nodes, int64_t depth, int64_t branch);
// OPT-Tree: each level keeps as many as the tree may have; ends at `depth`, or with a level that adds at most
// `threshold` to the expected number of accepted tokens. SpecExtend's code detects that one forward later and discards
// that level; the tree is the same.
TreeShape opt_shape(int64_t nodes, int64_t depth, float threshold);
// LongSpec: level l has widths[l] nodes, the best children of the previous level; all are in the tree.
TreeShape beams_shape(std::span<const int64_t> widths);
TreeShape chain_shape(int64_t tokens);

// Parses --tree. Nodes include the root, since they are the rows that the target computes:
//   auto                            adapts while running
//   eagle2[:nodes[,depth[,topk]]]   60, 7, 10
//   opt[:nodes[,depth[,threshold]]] 51, 10, 0.7
//   beams:4,16,16,16,16             widths by level
//   chain:N                         N tokens
// No shape: auto. Throws Error(kUsage) that names `where` and the value.
std::optional<TreeShape> parse_tree(std::string_view text, const std::string& where = "--tree");

}  // namespace headrace
