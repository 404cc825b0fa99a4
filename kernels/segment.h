// What every op asks of a segment that the host can look at: those of prefill's attention lie in device memory.
// Internal to kernels. Pure.
#pragma once

#include "cache/base.h"
#include "kernels/attention.h"

namespace headrace::kernels {

inline void check_segment(const KvSegment& segment) {
  CHECK(segment.position >= 0 && segment.position % kPrefixTile == 0, "position=", segment.position);
  CHECK(segment.rows >= 0 && segment.rows <= segment.stride_rows, "rows=", segment.rows,
        " stride_rows=", segment.stride_rows);
  CHECK(segment.rows == 0 || (segment.k != nullptr && segment.v != nullptr), "rows=", segment.rows);
}

}  // namespace headrace::kernels
