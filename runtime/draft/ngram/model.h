// --spec-type ngram-simple: no weights, only options. Thread: as in runtime/draft/draft_model.h.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

std::unique_ptr<DraftModel> open_ngram_draft(const DraftOptions& options, Device& device);  // as open_draft

}  // namespace headrace
