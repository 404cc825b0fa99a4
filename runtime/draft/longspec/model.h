// --spec-type draft-longspec: a LongSpec layer's weights and options, opened and checked against a target.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

// `tree` is the largest. Otherwise as open_draft.
std::unique_ptr<DraftModel> open_longspec_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                                const DraftTarget& target);

}  // namespace headrace
