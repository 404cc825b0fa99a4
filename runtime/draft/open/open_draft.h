// Opens the draft of --spec-type, of any kind.
#pragma once

#include <memory>
#include <string>

#include "runtime/draft/draft_model.h"

namespace headrace {

// What the options' type means for a target: itself, or what kAuto comes to. Throws Error(kBadInput) that names
// `model`, the target's path, if they ask for a block that it lacks.
SpecType chosen_type(const DraftOptions& options, const ModelConfig& config, const std::string& model);

// Null for kNone. REQUIRES: the type is the chosen_type(). Reserves memory for its weights on the device. `target` must
// outlive the model. Throws Error if the draft does not match its target, with both values, and for incompatible
// options (kUsage). `tokenizer`, the target's, is read only during the call; null: unknown, and the draft's is not
// checked.
std::unique_ptr<DraftModel> open_draft(const DraftOptions& options, Device& device, const ModelConfig& config,
                                       const Weights& target, const Tokenizer* tokenizer = nullptr);

}  // namespace headrace
