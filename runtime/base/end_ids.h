// eos_token_id as config.json and generation_config.json write it: a number, a list, null or absent. Pure. Included by
// .cc files only.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/json_file.h"

namespace headrace {

// Adds the ids that `out` lacks. Throws Error(kBadInput) for an id outside the vocabulary.
void append_end_ids(const JsonFields& fields, int64_t vocab, std::vector<int32_t>* out);

}  // namespace headrace
