// The rows of layers whose attention has a window (docs/design.md, section 6, rule 2): a ring of slots, each of which
// holds as many rows as a small segment, in its layout. Row p is in slot p / kWindowSlotRows, a slot takes the place of
// the one that is `slots` before it. Pure functions of sizes.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cache/layout.h"

namespace headrace {

constexpr int64_t kWindowSlotRows = kSmallSegmentRows;

struct WindowShape {
  RowShape rows{};     // rows.layers is 0: no layer has a window
  int64_t window = 0;  // rows that a query sees, its own included
  int64_t slots = 0;   // of a layer

  uint64_t slot_bytes() const { return static_cast<uint64_t>(kWindowSlotRows) * rows.bytes(); }
  uint64_t bytes() const { return static_cast<uint64_t>(rows.layers * slots) * slot_bytes(); }
  // Rows that a later prompt needs of those before its first computed one: whole tiles.
  int64_t snapshot_rows() const { return ceil_div(window, kPrefixTile) * kPrefixTile; }
};

// The window before any committed row, and the slot that grows, of a context of so many rows.
inline int64_t window_slots(int64_t window, int64_t context_rows) {
  return std::min(ceil_div(window, kWindowSlotRows) + 1, ceil_div(context_rows, kWindowSlotRows));
}

}  // namespace headrace
