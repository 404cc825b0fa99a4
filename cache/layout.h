// Layout of the KV cache: rows, segments, bytes (docs/design.md, section 2). Pure functions of sizes.
//
// A layer's rows are cut into segments by absolute position alone: 512 rows up to row 16,384, 2,048 beyond. A segment
// is K then V, each [kv_heads, rows, head_dim], always of full size; the segments of a layer are contiguous.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace {

constexpr int64_t kSmallSegmentRows = 512;
constexpr int64_t kLargeSegmentRows = 2048;
constexpr int64_t kLargeSegmentsFrom = 16384;  // the first row of the first large segment

// One token's K and V in one layer.
struct RowShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  DType k_type = DType::kBF16, v_type = DType::kBF16;

  uint64_t k_bytes() const { return static_cast<uint64_t>(kv_heads * head_dim) * dtype_bytes(k_type); }
  uint64_t v_bytes() const { return static_cast<uint64_t>(kv_heads * head_dim) * dtype_bytes(v_type); }
  uint64_t bytes() const { return k_bytes() + v_bytes(); }
  uint64_t bytes_all_layers() const { return bytes() * static_cast<uint64_t>(layers); }
};

struct SegmentRange {
  int64_t begin;  // absolute position of the first row
  int64_t rows;   // capacity: 512 or 2,048
  int64_t end() const { return begin + rows; }
};

int64_t segment_of(int64_t row);            // the index of the segment that holds a row
SegmentRange segment_range(int64_t index);  // the rows of a segment
int64_t segments_for(int64_t rows);         // how many segments hold rows [0, rows)
int64_t segments_capacity(int64_t count);   // rows that the first `count` segments hold

// Bytes of segments [first, last) of one layer. segments_bytes(shape, 0, i) is segment i's offset in its layer.
uint64_t segments_bytes(const RowShape& shape, int64_t first, int64_t last);

}  // namespace headrace
