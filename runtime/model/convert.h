// Weights from one stored element type to another, whole runs at a time. Rounds to nearest even. Pure; `source` need
// not be aligned.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace {

// `count` elements of type `from` at `source`, written as type `to` at `out`.
void convert_elements(DType from, const char* source, DType to, void* out, int64_t count);

}  // namespace headrace
