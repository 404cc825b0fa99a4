// What a quantised block's error could be: an exhaustive search over its scales. Slow; for comparison.
#pragma once

#include "kernels/weights/type.h"

namespace headrace::testing_support {

// The least squared error that a block of Q4_K, Q5_K or Q6_K can have with one choice of its f16 numbers: the largest
// group's range has the largest scale (and the largest minimum). Tried are, for each group, all 64 scales with all 64
// minima, of Q6_K all 255 scales that are not 0.
double searched_error(WeightType type, const float* values);

double squared_error(const float* values, const float* others, int count);

}  // namespace headrace::testing_support
