// --spec-type KIND,ngram-simple: a draft with weights, and look-up beside it. Thread: as in
// runtime/draft/draft_model.h.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

// The pair's trees have as many nodes as the head's, and as many levels as the deeper of both.
std::unique_ptr<DraftModel> pair_with_look_up(std::unique_ptr<DraftModel> head, std::unique_ptr<DraftModel> look_up);

}  // namespace headrace
