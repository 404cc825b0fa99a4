// Converts runs of weights from a stored element type to another one. Rounds to nearest even. `source` need not be
// aligned. Any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"
#include "runtime/base/input_file.h"

namespace headrace {

// Reads `count` elements of type `from` at `source`, and writes them as type `to` at `out`.
void convert_elements(DType from, const char* source, DType to, void* out, int64_t count);
// The same for the elements of type `from` in a range of a file.
void read_converted(DType from, const ByteRange& range, DType to, void* out);
// The index of the first of `count` values that is a NaN or an infinity; `count` if there is none.
int64_t first_not_finite(DType type, const void* values, int64_t count);

// The size of reads whose bytes are converted at once: small enough for a core's cache.
constexpr uint64_t kReadBytes = 128 * kKiB;

}  // namespace headrace
