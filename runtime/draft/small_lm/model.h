// A small language model opened as a draft and checked against its target: the same vocabulary, token for token except
// for padding. Thread: as in runtime/draft/draft_model.h.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

// `tree` is the largest. Otherwise as open_draft. The weights are of the target's type.
std::unique_ptr<DraftModel> open_simple(const DraftOptions& options, const TreeShape& tree, Device& device,
                                        const DraftTarget& target);

// The default window; 0: all rows, for a run that has no more. At most 1,024 rows, and few enough that all distances,
// in a tree of `deepest` levels, stay within the draft's positions. Pure.
int64_t usual_window(int64_t max_positions, int64_t context_tokens, int64_t deepest);

}  // namespace headrace
