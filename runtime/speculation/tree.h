// The tree of candidate tokens that one target pass verifies (docs/design.md, section 2; EAGLE-2, OPT-Tree). Node 0 is
// the root: the last sampled token, not yet in the KV cache. Plain decoding is a tree of one node. A plain value.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/partial.h"

namespace headrace {

constexpr int64_t kMaxTreeNodes = 128;  // most that a draft proposes
constexpr int64_t kMaxPassNodes = 512;  // most that a pass judges: also a refresh's pending tokens

// Limits for a draft's tree in one step.
struct TreeLimits {
  int64_t nodes = kMaxTreeNodes;   // the root included, at least 2
  int64_t levels = kMaxTreeNodes;  // below the root, at least 1
  bool operator==(const TreeLimits&) const = default;
};

struct Tree {
  std::vector<int32_t> tokens;
  std::vector<int32_t> parents;  // -1 for the root; a parent precedes its children
  std::vector<int32_t> depths;   // 0 for the root
  std::vector<float> scores;     // log-probability of the path by the draft, 0 for the root; empty without ranking

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  void reset(int32_t root) {
    tokens.assign(1, root);
    parents.assign(1, -1);
    depths.assign(1, 0);
    scores.clear();
  }
  // Keeps the first nodes, the root at least.
  void cut(int64_t nodes) {
    CHECK(nodes >= 1 && nodes <= size(), "nodes=", nodes, " size=", size());
    const auto kept = static_cast<size_t>(nodes);
    tokens.resize(kept);
    parents.resize(kept);
    depths.resize(kept);
    if (!scores.empty()) scores.resize(kept);
  }
  // Returns the index of the new node.
  int32_t add(int32_t token, int32_t parent) {
    CHECK(parent >= 0 && parent < size() && size() < kMaxPassNodes, "parent=", parent, " size=", size());
    tokens.push_back(token);
    parents.push_back(parent);
    depths.push_back(depths[static_cast<size_t>(parent)] + 1);
    return static_cast<int32_t>(size() - 1);
  }
};

}  // namespace headrace
