// Weights from one stored element type to another, whole runs at a time. Rounds to nearest even. `source` need not be
// aligned. Any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {

// `count` elements of type `from` at `source`, written as type `to` at `out`.
void convert_elements(DType from, const char* source, DType to, void* out, int64_t count);
// The elements of type `from` that `range` holds, read and converted.
void read_converted(DType from, const ByteRange& range, DType to, void* out);
// The index of the first of `count` values that is a NaN or an infinity; `count` if there is none.
int64_t first_not_finite(DType type, const void* values, int64_t count);

// What a file's bytes are read in where they are converted on the way: they stay in a core's cache.
constexpr uint64_t kReadBytes = 128 * kKiB;

}  // namespace headrace
