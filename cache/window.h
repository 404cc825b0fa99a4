// The rows of layers whose attention has a window (docs/design.md, section 6, rule 2): a ring of slots, each of which
// holds as many rows as a small segment, in its layout. Row p is in slot p / kWindowSlotRows, a slot takes the place of
// the one that is `slots` before it. While prefill builds such a layer, it has as many rows as a group of its rows may
// see. Pure functions of sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/layout.h"

namespace headrace {

constexpr int64_t kWindowSlotRows = kSmallSegmentRows;

struct WindowShape {
  RowShape rows{};         // rows.layers is 0: no layer has a window
  int64_t window = 0;      // rows that a query sees, its own included
  int64_t slots = 0;       // of a layer
  int64_t built_rows = 0;  // of the ring in which prefill builds a layer, if the prompt has as many; 0: the prompt's

  uint64_t slot_bytes() const { return static_cast<uint64_t>(kWindowSlotRows) * rows.bytes(); }
  uint64_t bytes() const { return static_cast<uint64_t>(rows.layers * slots) * slot_bytes(); }
  // Rows of that ring. A segment is never cut: it begins at a multiple of its size, as the ring ends.
  int64_t built_ring_rows(int64_t prompt_rows) const {
    const int64_t all = segments_capacity(segments_for(prompt_rows));
    return built_rows == 0 ? all : std::min(built_rows, all);
  }
  // Rows that a later prompt needs of those before its first computed one: whole tiles.
  int64_t snapshot_rows() const { return ceil_div(window, kPrefixTile) * kPrefixTile; }
};

// The window before any committed row, and the slot that grows, of a context of so many rows.
inline int64_t window_slots(int64_t window, int64_t context_rows) {
  return std::min(ceil_div(window, kWindowSlotRows) + 1, ceil_div(context_rows, kWindowSlotRows));
}

// Rows of WindowShape::built_rows with which no row is overwritten that a query of a group, or a snapshot behind one of
// its rows, needs.
inline int64_t window_built_rows(int64_t window, int64_t group_rows) {
  const int64_t seen = ceil_div(window, kPrefixTile) * kPrefixTile;
  return ceil_div(seen + group_rows, kLargeSegmentRows) * kLargeSegmentRows;
}

// Where a segment is in a ring of so many rows.
inline uint64_t ring_offset(const RowShape& shape, int64_t ring_rows, int64_t index) {
  const int64_t begin = segment_range(index).begin % ring_rows;
  return static_cast<uint64_t>(begin / kSmallSegmentRows) * segments_bytes(shape, 0, 1);
}
inline uint64_t ring_bytes(const RowShape& shape, int64_t ring_rows) {
  return static_cast<uint64_t>(ring_rows / kSmallSegmentRows) * segments_bytes(shape, 0, 1);
}

}  // namespace headrace
