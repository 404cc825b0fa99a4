// Quantised weights on the host, in the blocks of their file. Loading reads them. Any thread.
#pragma once

#include <cstdint>

#include "kernels/weights/type.h"

namespace headrace {

// `count` blocks of a quantised type, which need not be aligned, rounded once to `to`. In f32 the values equal those of
// the reference (the gguf package's quants.dequantize) to the bit, with every instruction set.
void dequantise_blocks(WeightType type, const void* blocks, int64_t count, DType to, void* out);

// The first of `count` blocks that may hold a value which is not finite once rounded to `to`, by its scales alone;
// `count` if there is none.
int64_t first_suspect_block(WeightType type, const void* blocks, int64_t count, DType to);

}  // namespace headrace
