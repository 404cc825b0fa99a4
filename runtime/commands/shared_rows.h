// Which runs of a batch leave the rows of their prompts to the next one (KeepRows::kPrompt): those whose neighbours
// begin alike, so that a long beginning is prefilled once. Pure, but for generate_sharing(). Thread: one an engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"

namespace headrace {

struct SharedPrompt {         // a document or a request of a batch, in its order
  uint64_t bytes = 0;         // of its text
  size_t shared = 0;          // bytes with which it begins as the one before does, or up to half as many
  int64_t answer_tokens = 0;  // at most; -1: until the context is full
};

// Of documents in files, what is not a file without a length. Reads neighbours as far as they are alike.
std::vector<SharedPrompt> shared_prompts(const std::vector<std::string>& files, int64_t answer_tokens);
// For BatchOptions::shared.
std::vector<size_t> shared_bytes(std::span<const SharedPrompt> prompts);

// Whether runs may keep rows at all. With saved prefixes they do not: those serve any earlier prompt, kept rows only
// the last. An approximate text depends on a draft's rows.
bool may_share_rows(const EngineOptions& options);

// GenerateOptions::keep_tokens of prompt `index`, which has so many tokens: enough for the longest of those behind it
// that begin as it does, for a quarter of their own length or more (an eighth
// where all of what is common is known, as of files). Lengths of the others are estimated by their bytes;
// one that was estimated too short computes its beginning again. 0: no neighbour begins alike, and no rows are kept.
int64_t tokens_to_share(std::span<const SharedPrompt> prompts, size_t index, int64_t prompt_tokens);

// Engine::generate() with `keep_tokens` from tokens_to_share(). Where the budgets have no room for as many, rows are
// kept for prompts of this one's length, or none.
GenerateResult generate_sharing(Engine& engine, const std::vector<int32_t>& prompt, GenerateOptions options,
                                int64_t keep_tokens, Progress* progress);

}  // namespace headrace
