// Whether a draft reads and writes its target's tokens. Throws Error(kBadInput) that names the first token by which the
// two differ. Pure but for the files read; from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/text/tokenizer.h"

namespace headrace {

// Ids that one of the two does not name are padding (GGUF files name it, tokenizer.json files do not).
void check_tokenizer(const Tokenizer& own, const Tokenizer& target, const std::string& draft);
// With the tokenizer.json in a draft's folder; without one the draft is taken to have its target's.
void check_tokenizer_in(const std::string& folder, const Tokenizer& target);
// Whether from `id` on a tokenizer names padding alone.
bool only_padding_from(const Tokenizer& tokenizer, int64_t id);

}  // namespace headrace
