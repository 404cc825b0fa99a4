// What the CPU bodies share that loop over rows of elements. Plain functions; any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "cache/base.h"
#include "offload/host/thread_pool.h"

namespace headrace::kernels::cpu {

// With fewer elements a loop costs less than waking the pool (a few microseconds).
constexpr int64_t kInlineElements = 16 * 1024;

// Calls body(row) for every row: in the calling thread for little work, else in runs of rows.
template <typename Body>
void for_rows(ThreadPool& pool, int64_t rows, int64_t elements_per_row, const Body& body) {
  if (rows * elements_per_row <= kInlineElements || pool.threads() == 1) {
    for (int64_t row = 0; row < rows; ++row) body(row);
    return;
  }
  const int64_t run = std::max<int64_t>(1, kInlineElements / 4 / std::max<int64_t>(1, elements_per_row));
  pool.parallel_for(ceil_div(rows, run), [&](int64_t index, int) {
    const int64_t end = std::min(rows, (index + 1) * run);
    for (int64_t row = index * run; row < end; ++row) body(row);
  });
}

// Element `element` of an array of this type.
inline const std::byte* at(const void* base, int64_t element, DType type) {
  return static_cast<const std::byte*>(base) + element * static_cast<int64_t>(dtype_bytes(type));
}
inline std::byte* at(void* base, int64_t element, DType type) {
  return static_cast<std::byte*>(base) + element * static_cast<int64_t>(dtype_bytes(type));
}

}  // namespace headrace::kernels::cpu
