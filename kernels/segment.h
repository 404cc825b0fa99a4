// Rows of one layer as attention and the block ops read them: a pointer and a length, in any memory. Pure; any thread.
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
  int32_t stride_rows;  // >= rows
};

constexpr int64_t kMaxPrefixSegments = 64;  // read by one call

namespace kernels {

// For segments in host memory; those of prefill attention are in device memory.
inline void check_segment(const KvSegment& segment) {
  CHECK(segment.position >= 0 && segment.position % kPrefixTile == 0, "position=", segment.position);
  CHECK(segment.rows >= 0 && segment.rows <= segment.stride_rows, "rows=", segment.rows,
        " stride_rows=", segment.stride_rows);
  CHECK(segment.rows == 0 || (segment.k != nullptr && segment.v != nullptr), "rows=", segment.rows);
}

}  // namespace kernels
}  // namespace headrace
