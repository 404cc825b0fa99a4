// The rows of the layers whose attention has a window: those before the last committed row that a query may see, in a
// ring of slots on the device (cache/window.h), and the ones that the tail reads (recent_rows.h). They take the same
// memory whatever the context is. Nothing of them is streamed, and no partial step reads anything else, so these layers
// are exact in each step. Slots are read as segments, at the same absolute positions as the small segments of a KV
// cache. Owns device memory. Thread: one at a time; all work is enqueued on the stream.
#pragma once

#include <cstdint>
#include <vector>

#include "cache/window.h"
#include "kernels/segment.h"
#include "offload/device/device.h"
#include "runtime/kv/recent_rows.h"

namespace headrace {

class WindowRows {
 public:
  WindowRows(Device& device, const WindowShape& shape, int64_t pass_rows);
  // Device memory, and pinned host memory.
  static uint64_t bytes(const WindowShape& shape, int64_t pass_rows);
  static uint64_t pinned_bytes(const WindowShape& shape) { return whole_pages(RecentRows::pointer_bytes(shape.rows)); }

  const WindowShape& shape() const { return shape_; }
  const RecentRows& recent() const { return recent_; }

  // Takes the last of the first `rows` rows of a layer, as prefill built them in rings of segments (cache/window.h), of
  // shape().built_ring_rows(rows) rows: as they are stored, and exact. The same memory if no type is low-bit.
  void store_layer(int64_t layer, int64_t rows, const std::byte* stored, const std::byte* exact, Stream& compute);
  void finish_prefill(int64_t rows) { rows_ = rows; }

  // The slots of a layer that rows before `end_row` are in, the oldest first. A slot's rows that no query sees any more
  // may be newer ones. REQUIRES: end_row <= tail_begin() of the deepest query.
  std::vector<KvSegment> slots(int64_t layer, int64_t end_row) const;
  // The same slots are read up to this value of tail_begin().
  static int64_t slots_end(int64_t end_row) { return ceil_div(end_row, kWindowSlotRows); }

  // As KvCache's, with the same numbers of rows.
  void append(const int32_t* source, int64_t count, Stream& compute);
  void append_pending(const int32_t* source, int64_t count, Stream& compute);

 private:
  static int64_t tail_rows(const WindowShape& shape);
  KvSegment slot(int64_t layer, int64_t index) const;

  const WindowShape shape_;
  int64_t rows_ = 0, pending_ = 0;
  DeviceBuffer memory_;  // [layers, slots], each K of all heads, then V. None if no type is low-bit:
  RecentRows recent_;    // then slots are parts of the tail's ring
};

// The ring of segments in which prefill builds a layer.
struct BuiltRing {
  std::byte* data;
  int64_t rows;
};
// Copies the rows of a layer that a prompt needs before `position`, shape.snapshot_rows() at most, from where prefill
// built them to a part of a snapshot, and back. In the part, K of all heads is before V, and row p is the
// p % snapshot_rows()th of its head.
void save_window(const WindowShape& shape, const BuiltRing& built, int64_t position, std::byte* part, Stream& stream);
void restore_window(const WindowShape& shape, const std::byte* part, int64_t position, const BuiltRing& built,
                    Stream& stream);

}  // namespace headrace
