// Rows of one layer in any memory: as attention and the block ops read them, and where a pass puts them. Pure; any
// thread.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace {

// A segment (resident, staged or being built), or a part of a partial KV.
// If K (or V) is stored as int8 or int4, it is a plane as in kernels/rows/op.h.
struct KvSegment {
  const void* k;        // [kv_heads, stride_rows, head_dim]
  const void* v;        // the same
  int32_t position;     // of the first row: a multiple of kPrefixTile
  int32_t rows;         // rows that exist
  int32_t stride_rows;  // >= first_row + rows
  // Of a part of a segment: the plane's rows before it, of every KV head. REQUIRES: 0 unless int8 or int4, whose planes
  // end in parameters; k and v of other rows can point to the part.
  int32_t first_row = 0;
};

// Where a pass's K and V rows go: row i of head h is at (i + first) * row_stride + h * head_stride elements.
struct KvRows {
  void* k = nullptr;
  void* v = nullptr;
  int64_t row_stride = 0, head_stride = 0;
  const int32_t* first = nullptr;  // [1], device; null: 0
};

constexpr int64_t kMaxPrefixSegments = 128;  // of a call's params

namespace kernels {

// For segments in host memory; those of prefill attention are in device memory.
inline void check_segment(const KvSegment& segment) {
  CHECK(segment.position >= 0 && segment.position % kPrefixTile == 0, "position=", segment.position);
  CHECK(segment.rows >= 0 && segment.first_row >= 0 && segment.first_row + segment.rows <= segment.stride_rows,
        "first_row=", segment.first_row, " rows=", segment.rows, " stride_rows=", segment.stride_rows);
  CHECK(segment.rows == 0 || (segment.k != nullptr && segment.v != nullptr), "rows=", segment.rows);
}

}  // namespace kernels
}  // namespace headrace
