// What loading makes of the type that a file stores a matrix in. Pure; any thread.
#pragma once

#include <optional>
#include <string_view>

#include "kernels/weights/type.h"

namespace headrace {

// Whether it is one of the quantised types that can be read. `stored`: as ggml names it, "Q4_K".
bool is_quantised(std::string_view stored);

// The quantised type that products read such a matrix in: the same one, or a larger one that has the same values. None:
// there is none, and it is dequantised.
std::optional<WeightType> kept_type(std::string_view stored);

}  // namespace headrace
