// Opens the draft that --spec-type names, whichever kind it is.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

// Null for kNone. Reserves its weights' memory on the device. `target` must outlive the model. Throws Error where the
// draft does not fit its target, with both values, and for options that do not go together (kUsage). `tokenizer`, the
// target's, is read here only; null: unknown, and a draft's is not looked at.
std::unique_ptr<DraftModel> open_draft(const DraftOptions& options, Device& device, const ModelConfig& config,
                                       const Weights& target, const Tokenizer* tokenizer = nullptr);

}  // namespace headrace
