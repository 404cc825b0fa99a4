// Layout of the KV cache: rows, segments, bytes (docs/design.md, section 2). Pure functions of sizes.
//
// A layer's rows are cut into segments by absolute position alone: 512 rows up to row 16,384, 2,048 beyond. A segment
// is K then V, each [kv_heads, rows, head_dim], or a plane of kernels/rows/op.h if its type is low-bit; always of full
// size, with 512 rows in whole pages; the segments of a layer are contiguous. Where K is made of V, a segment is V.
#pragma once

#include <cstdint>

#include "cache/base.h"

namespace headrace {

constexpr int64_t kSmallSegmentRows = 512;
constexpr int64_t kLargeSegmentRows = 2048;
constexpr int64_t kLargeSegmentsFrom = 16384;  // the first row of the first large segment
constexpr int64_t kSmallSegments = kLargeSegmentsFrom / kSmallSegmentRows;

// One token's K and V in one layer, as stored in segments.
struct RowShape {
  int64_t layers = 0, kv_heads = 0, head_dim = 0;
  DType k_type = DType::kBF16, v_type = DType::kBF16;
  DType exact_type = DType::kBF16;  // of K and V where low-bit rows are held exactly: see exact()
  // K is made of V (Gemma 4; kernels/rows/op.h, make_keys): segments have V alone. Memory that attention reads has
  // their K as well, behind the V of all its segments and at the same places. REQUIRES: one type of both, which is not
  // low-bit.
  bool values_alone = false;

  uint64_t k_bytes() const { return values_alone ? 0 : static_cast<uint64_t>(kv_heads) * row_bytes(k_type, head_dim); }
  uint64_t v_bytes() const { return static_cast<uint64_t>(kv_heads) * row_bytes(v_type, head_dim); }
  uint64_t bytes() const { return k_bytes() + v_bytes(); }
  uint64_t bytes_all_layers() const { return bytes() * static_cast<uint64_t>(layers); }
  bool has_low_bit() const { return low_bit(k_type) || low_bit(v_type); }
  // The same rows where no type is low-bit, K and V: in the tail and in the rows of a pass.
  RowShape exact() const {
    RowShape shape = *this;
    shape.values_alone = false;
    if (low_bit(k_type)) shape.k_type = exact_type;
    if (low_bit(v_type)) shape.v_type = exact_type;
    return shape;
  }
  // The same rows in the layer that prefill computes.
  RowShape built() const { return has_low_bit() ? exact() : *this; }
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

// Bytes of segments [first, last) of one layer: 512 rows take whole pages. segments_bytes(shape, 0, i) is segment i's
// offset in its layer.
uint64_t segments_bytes(const RowShape& shape, int64_t first, int64_t last);
// The same in memory that attention reads, with the K that is made.
inline uint64_t readable_bytes(const RowShape& shape, int64_t first, int64_t last) {
  return (shape.values_alone ? 2 : 1) * segments_bytes(shape, first, last);
}

// Values of K and V in segments [first, last) of one layer, and the bytes of their remainders (cache/base.h), each with
// all the room that pieces may take. remainders_bytes(shape, first, i) is segment i's offset.
uint64_t segments_values(const RowShape& shape, int64_t first, int64_t last);
uint64_t remainders_bytes(const RowShape& shape, int64_t first, int64_t last);

}  // namespace headrace
