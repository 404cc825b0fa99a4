// --spec-type draft-longspec: a LongSpec layer's weights and options, opened and checked against a target.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"
#include "runtime/draft/longspec/draft.h"

namespace headrace {

// `tree` is the largest; `tokenizer` is the target's, or null. Otherwise as open_draft. `target` must outlive the
// model.
std::unique_ptr<DraftModel> open_longspec_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                                const LongSpecTarget& target, const Tokenizer* tokenizer);

}  // namespace headrace
