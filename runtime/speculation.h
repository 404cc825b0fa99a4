// What drafting gave in a run. tau counts the accepted draft tokens of a step, as SpecPV does; EAGLE's papers
// add the target's own token, which is tokens_per_step here. A plain value.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/accept.h"

namespace headrace {

struct Speculation {
  std::string type;  // "draft-eagle3"; empty: no draft
  int64_t steps = 0;
  int64_t proposed = 0, accepted = 0;      // draft tokens
  std::vector<int64_t> accepted_by_depth;  // [d]: steps whose draft token at depth d + 1 was accepted
  double draft_ms = 0, verify_ms = 0;      // sums over the steps: proposing a tree; the target's pass and its commit

  double tau() const { return steps > 0 ? static_cast<double>(accepted) / static_cast<double>(steps) : 0; }
  double tokens_per_step() const { return steps > 0 ? tau() + 1 : 0; }
  void record(const Tree& tree, const Acceptance& acceptance) {
    const size_t right = acceptance.nodes.size() - 1;
    ++steps;
    proposed += tree.size() - 1;
    accepted += static_cast<int64_t>(right);
    if (accepted_by_depth.size() < right) accepted_by_depth.resize(right);
    for (size_t depth = 0; depth < right; ++depth) ++accepted_by_depth[depth];
  }
};

}  // namespace headrace
