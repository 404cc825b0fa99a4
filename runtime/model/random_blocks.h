// Quantised blocks of random bits, for models of random weights. Pure; any thread.
#pragma once

#include <cstdint>

#include "kernels/weights/type.h"

namespace headrace {

// Blocks [begin, end) of the sequence of `key`, each a pure function of type, columns, key and index. The weights have
// a mean of 0 and a variance of 1 / cols.
void draw_blocks(WeightType type, int64_t cols, uint64_t key, int64_t begin, int64_t end, void* out);

}  // namespace headrace
