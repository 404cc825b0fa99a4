// Quantised weights on the host, in the blocks of their file: loading reads them, and makes them for --weights q8_0 and
// the like. Any thread.
#pragma once

#include <cstdint>

#include "kernels/weights/type.h"

namespace headrace {

// For a table of the quantised types. REQUIRES: not is_plain(type)
constexpr size_t quantised_index(WeightType type) {
  return static_cast<size_t>(type) - static_cast<size_t>(WeightType::kQ4_0);
}

// `count` blocks of a quantised type, which need not be aligned, rounded once to `to`. In f32 the values equal those of
// the reference (the gguf package's quants.dequantize) to the bit, with every instruction set.
void dequantise_blocks(WeightType type, const void* blocks, int64_t count, DType to, void* out);

// The first of `count` blocks that may hold a value which is not finite once rounded to `to`, by its scales alone;
// `count` if there is none.
int64_t first_suspect_block(WeightType type, const void* blocks, int64_t count, DType to);

constexpr bool can_quantise_to(WeightType type) {
  return type == WeightType::kQ8_0 || type == WeightType::kQ4K || type == WeightType::kQ5K || type == WeightType::kQ6K;
}

// Writes `count` blocks. The bytes are a pure function of the values, the same with every instruction set. Q8_0 has the
// bytes of the gguf package's quants.quantize; the other types' levels and scales make the mean squared error small.
// The scale of a block with a value that is not finite is NaN. REQUIRES: can_quantise_to(type).
void quantise_blocks(WeightType type, const float* values, int64_t count, void* blocks);

}  // namespace headrace
