#include "cache/layout.h"

namespace headrace {

int64_t segment_of(int64_t row) {
  CHECK(row >= 0, "row=", row);
  if (row < kLargeSegmentsFrom) return row / kSmallSegmentRows;
  return kSmallSegments + (row - kLargeSegmentsFrom) / kLargeSegmentRows;
}

SegmentRange segment_range(int64_t index) {
  CHECK(index >= 0, "index=", index);
  if (index < kSmallSegments) return {index * kSmallSegmentRows, kSmallSegmentRows};
  return {kLargeSegmentsFrom + (index - kSmallSegments) * kLargeSegmentRows, kLargeSegmentRows};
}

int64_t segments_for(int64_t rows) { return rows <= 0 ? 0 : segment_of(rows - 1) + 1; }

int64_t segments_capacity(int64_t count) { return segment_range(count).begin; }

uint64_t segments_bytes(const RowShape& shape, int64_t first, int64_t last) {
  CHECK(first <= last, first, " > ", last);
  const auto units = static_cast<uint64_t>((segments_capacity(last) - segments_capacity(first)) / kSmallSegmentRows);
  return units * whole_pages(static_cast<uint64_t>(kSmallSegmentRows) * shape.bytes());
}

uint64_t segments_values(const RowShape& shape, int64_t first, int64_t last) {
  CHECK(first <= last, first, " > ", last);
  const int64_t rows = segments_capacity(last) - segments_capacity(first);
  return 2 * static_cast<uint64_t>(rows * shape.kv_heads * shape.head_dim);
}

uint64_t remainders_bytes(const RowShape& shape, int64_t first, int64_t last) {
  const uint64_t values = segments_values(shape, first, last);
  return remainder_bytes(values, remainder_room(values));
}

}  // namespace headrace
