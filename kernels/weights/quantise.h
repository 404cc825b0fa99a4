// From weights to quantised blocks, for --weights q8_0 and the like. Any thread.
#pragma once

#include <cstdint>

#include "kernels/weights/type.h"

namespace headrace {

constexpr bool can_quantise_to(WeightType type) {
  return type == WeightType::kQ8_0 || type == WeightType::kQ4K || type == WeightType::kQ5K || type == WeightType::kQ6K;
}

// Writes `count` blocks. The bytes are a pure function of the values, the same with every instruction set. Q8_0 has the
// bytes of the gguf package's quants.quantize; the other types' levels and scales make the mean squared error small.
// The scale of a block with a value that is not finite is NaN. REQUIRES: can_quantise_to(type).
void quantise_blocks(WeightType type, const float* values, int64_t count, void* blocks);

}  // namespace headrace
