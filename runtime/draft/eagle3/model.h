// --spec-type draft-eagle3: an EAGLE-3 head's weights and options, opened and checked against a target.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

// `tree` is the largest. Otherwise as open_draft.
std::unique_ptr<DraftModel> open_eagle3_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const DraftTarget& target);

}  // namespace headrace
