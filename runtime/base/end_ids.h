// eos_token_id as config.json and generation_config.json have it: a number, a list, null or nothing. Pure. Included by
// .cc files only.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/json_file.h"

namespace headrace {

// Adds the ids that are not in `out` yet. Error(kBadInput) if one is not a token of the vocabulary.
void append_end_ids(const JsonFields& fields, int64_t vocab, std::vector<int32_t>* out);

}  // namespace headrace
