// Opens the draft of --spec-type, of any kind.
#pragma once

#include <memory>
#include <string>

#include "runtime/draft/draft_model.h"

namespace headrace {

// Throws Error(kBadInput) that names `model`, the target's path, if the options ask for the block that it lacks.
void check_has_block(const DraftOptions& options, const ModelConfig& config, const std::string& model);

// Null for kNone. REQUIRES: check_has_block() has passed. Reserves memory for its weights on the device. `target` must
// outlive the model. Throws Error if the draft does not match its target, with both values, and for incompatible
// options (kUsage). `tokenizer`, the target's, is read only during the call; null: unknown, and the draft's is not
// checked.
std::unique_ptr<DraftModel> open_draft(const DraftOptions& options, Device& device, const ModelConfig& config,
                                       const Weights& target, const Tokenizer* tokenizer = nullptr);

}  // namespace headrace
