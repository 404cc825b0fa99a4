// --spec-type draft-eagle3: an EAGLE-3 head's weights and options, opened and checked against a target.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"

namespace headrace {

struct Eagle3Target {
  const ModelConfig* config;
  const Weights* weights;
};

// `tree` is the largest; `tokenizer` is the target's, or null. Otherwise as open_draft. `target` must outlive the
// model.
std::unique_ptr<DraftModel> open_eagle3_draft(const DraftOptions& options, const TreeShape& tree, Device& device,
                                              const Eagle3Target& target, const Tokenizer* tokenizer);

}  // namespace headrace
