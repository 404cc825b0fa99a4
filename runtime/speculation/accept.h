// Finds the correct part of a verified tree (docs/design.md, section 6, rule 3): from the root, the child that equals
// the target's own sample, as deep as possible. Exact at every temperature, because the sample is a pure function of
// the row. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/speculation/tree.h"

namespace headrace {

struct Acceptance {
  std::vector<int32_t> nodes;  // the accepted path, root first; never empty
  int32_t next = -1;           // the target's sample after its last node
};

// samples[i] is the target's token after node i. `out` is reused, so that the loop does not allocate.
void accept(const Tree& tree, std::span<const int32_t> samples, Acceptance* out);
// The same, except that the first `settled` nodes after the root, a chain, are accepted regardless of the samples.
void accept_behind(const Tree& tree, std::span<const int32_t> samples, int64_t settled, Acceptance* out);

}  // namespace headrace
