// Decides which runs of a batch leave the rows of their prompts to the next one (KeepRows::kPrompt): those whose
// neighbours share a long beginning, so that it is prefilled once. Pure except for generate_sharing(). Thread: one per
// engine.
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
  size_t shared = 0;          // bytes of its common beginning with the previous one, or at least half of them
  int64_t answer_tokens = 0;  // at most; -1: until the context is full
};

// Document lengths come from file sizes; non-files have none. Reads neighbours as far as their contents are equal.
std::vector<SharedPrompt> shared_prompts(const std::vector<std::string>& files, int64_t answer_tokens);
// For BatchOptions::shared.
std::vector<size_t> shared_bytes(std::span<const SharedPrompt> prompts);

// Whether runs may keep rows at all. With saved prefixes they do not: those serve any earlier prompt, kept rows only
// the last. An approximate text depends on a draft's rows.
bool may_share_rows(const EngineOptions& options);

// GenerateOptions::keep_tokens of prompt `index`, which has `prompt_tokens` tokens: enough for the longest of the next
// prompts whose common beginning with it is at least a quarter of their length (an eighth if the whole common beginning
// is known, as for files). Their lengths are estimated from their bytes; a prompt that is longer than estimated
// computes its beginning again. 0: no neighbour shares its beginning, and no rows are kept.
int64_t tokens_to_share(std::span<const SharedPrompt> prompts, size_t index, int64_t prompt_tokens);

// Calls Engine::generate() with `keep_tokens` from tokens_to_share(). If so many do not fit the budgets, keeps rows for
// prompts of this one's length, or none.
GenerateResult generate_sharing(Engine& engine, const std::vector<int32_t>& prompt, GenerateOptions options,
                                int64_t keep_tokens, Progress* progress);

}  // namespace headrace
