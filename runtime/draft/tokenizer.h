// Checks that a draft uses its target's tokens. Throws Error(kBadInput) that names the first difference. Pure except
// for the files read; from any thread.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/text/tokenizer.h"

namespace headrace {

// Ids without a name in one of the two are padding (GGUF files name it, tokenizer.json files do not).
void check_tokenizer(const Tokenizer& own, const Tokenizer& target, const std::string& draft);
// Checks the tokenizer.json in a draft's folder; without one the target's is assumed.
void check_tokenizer_in(const std::string& folder, const Tokenizer& target);
// Whether all ids from `id` on are padding.
bool only_padding_from(const Tokenizer& tokenizer, int64_t id);

}  // namespace headrace
