// One tree from two trees with the same root: the likeliest nodes of both, where nodes with the same path are one. Its
// scores are the larger ones. Pure.
#pragma once

#include <cstdint>

#include "runtime/speculation/tree.h"

namespace headrace {

// Writes at most `nodes` nodes to `out`, the root included. Both trees have scores. REQUIRES: the same root; out is
// neither of them.
void merge_trees(const Tree& a, const Tree& b, int64_t nodes, Tree* out);

}  // namespace headrace
