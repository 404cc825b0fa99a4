// The last rows of some layers, as the tail reads them (docs/design.md, section 6, rule 2): a ring of the last
// committed and pending rows of each layer, and the rows of the pass. They are exact. Committed rows leave for the
// segment that grows, where they are quantised if it is low-bit. Owns device memory. Thread: one at a time; all work is
// enqueued on the stream.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "cache/layout.h"
#include "cache/memory_plan.h"
#include "kernels/segment.h"
#include "offload/device/device.h"

namespace headrace {

class RecentRows {
 public:
  // `shape`: of the rows as they are stored; those here have that of shape.exact().
  RecentRows(Device& device, const RowShape& shape, int64_t pass_rows, int64_t ring_rows = kTailRingRows);
  static uint64_t ring_bytes(const RowShape& shape, int64_t ring_rows = kTailRingRows);
  static uint64_t pass_bytes(const RowShape& shape, int64_t pass_rows);
  static uint64_t pointer_bytes(const RowShape& shape);  // on each side

  struct Views {
    const void *ring_k, *ring_v, *pass_k, *pass_v;
    int64_t ring_rows;
  };
  Views views(int64_t layer) const;
  // Destination of a pass's own K and V rows, whose first row is pass row 0 or *first (device): [pass_rows, kv_heads,
  // head_dim].
  KvRows pass_destination(int64_t layer, const int32_t* first) const;

  // Copies the last of the first `rows` rows of a layer to the ring. `segment`: the exact rows of a segment of
  // cache/layout.h, by its index.
  void fill(int64_t layer, int64_t rows, const std::function<KvSegment(int64_t index)>& segment, Stream& stream);

  // Planes of all layers' rows at the positions of `range`, quantised to the types of `shape`.
  struct StoredRows {
    const RowShape& shape;
    void* const* planes;  // [2, layers] in device memory: K of each layer, then V
    SegmentRange range;
  };
  // Copies committed rows [first, first + count) from the ring. REQUIRES: the ring has them, and they are in the range.
  void quantise(const StoredRows& to, int64_t first, int64_t count, Stream& stream) const;

  // Where committed rows go: a segment of each layer, at these positions. Rare: once per segment.
  void point_at(std::span<const KvSegment> growing, const SegmentRange& range, Stream& compute);
  bool points_at(int64_t begin) const { return growing_.begin == begin; }
  // Position `first` + j is pass row source[j] (device memory, `count` of them), in the ring and in the segment of
  // point_at(); append_pending() leaves the segment as it is.
  void append(const int32_t* source, int64_t count, int64_t first, Stream& compute);
  void append_pending(const int32_t* source, int64_t count, int64_t first, Stream& compute);

 private:
  void commit(const int32_t* source, int64_t count, int64_t first, bool to_segment, Stream& compute);

  const RowShape shape_, exact_;
  const int64_t pass_rows_, ring_rows_;
  SegmentRange growing_{.begin = -1, .rows = 0};
  DeviceBuffer ring_memory_, pass_memory_, pointers_;
  PinnedBuffer host_pointers_;
};

}  // namespace headrace
