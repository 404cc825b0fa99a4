// Where the rows of a plane are (kernels/rows/op.h). Pure; any thread.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace::kernels {

// Row `row` of KV head `head` in a plane of `rows` rows: its values, and its parameters if the type has any.
struct PlaneRow {
  std::byte* values;
  std::byte* parameters;
};
inline PlaneRow plane_row(const void* plane, DType type, int64_t kv_heads, int64_t rows, int64_t head_dim, int64_t head,
                          int64_t row) {
  std::byte* base = static_cast<std::byte*>(const_cast<void*>(plane));
  const uint64_t values = row_value_bytes(type, head_dim), all = static_cast<uint64_t>(kv_heads * rows);
  const uint64_t index = static_cast<uint64_t>(head * rows + row);
  return {base + index * values, base + all * values + index * row_parameter_bytes(type, head_dim)};
}

}  // namespace headrace::kernels
