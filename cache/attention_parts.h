// How attention cuts the segments of the KV cache. Pure.
#pragma once

#include "cache/layout.h"

namespace headrace {

// Attention reads a segment in parts of so many rows, with a state each: thread blocks of similar length fill a GPU
// better. Depends on the segment's first row, the number of KV heads and the types of K and V alone, for it decides the
// order of sums (docs/design.md, section 6, rule 2).
int64_t attention_part_rows(int64_t first_row, int64_t kv_heads, DType k_type, DType v_type);

}  // namespace headrace
