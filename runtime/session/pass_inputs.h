// A tree as the inputs of a pass: tokens, positions and paths (work.h, StepInputs). Written to pinned memory, from
// where one copy is enqueued. Thread: the executor's.
#pragma once

#include <cstdint>

#include "runtime/session/attend.h"
#include "runtime/speculation/tree.h"

namespace headrace {

// The tree of a step that verifies it, as Executor::verify() has it. Returns the greatest position of a node.
int64_t upload_tree(const SessionLayout& layout, const SessionBuffers& buffers, const PassScope& scope,
                    const Tree& tree);
// Nodes from `first` on, in pass rows of the same numbers; their paths pass through rows of earlier calls. The last
// node is repeated up to `rows`. Returns the greatest position of these nodes.
int64_t upload_growth(const SessionLayout& layout, const SessionBuffers& buffers, const PassScope& scope,
                      const Tree& tree, int64_t first, int64_t rows);

}  // namespace headrace
