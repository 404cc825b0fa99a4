// A small language model opened as a draft and fitted to its target: the same vocabulary, token for token but for
// padding. Thread: as
// runtime/draft/draft_model.h.
#pragma once

#include <memory>

#include "runtime/draft/draft_model.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

struct SimpleTarget {
  const ModelConfig* config;
  const Weights* weights;      // of whose type the draft's are
  const Tokenizer* tokenizer;  // null: not known
};

// `options` as open_draft() has them; `tree` is what comes of them.
std::unique_ptr<DraftModel> open_simple(const DraftOptions& options, const TreeShape& tree, Device& device,
                                        const SimpleTarget& target);

// The rows that a query sees if nothing else is asked for; 0: all, of a run that has no more. At most 1,024, and as
// many as keep every distance, in a tree of `deepest`, within the draft's positions. Pure.
int64_t usual_window(int64_t max_positions, int64_t context_tokens, int64_t deepest);

}  // namespace headrace
