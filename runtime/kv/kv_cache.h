// The full KV cache of one run, as cache/memory_plan.h placed it: on the device the resident segments, the active
// segment and the last rows of every layer; the rest in a KvBacking (docs/design.md, sections 7 and 8). A layer that a
// draft reads is fully resident. Append-only: it never holds a rejected row. Owns the device memory and the backing;
// kernels see views.
//
// Call order: finish_prefill() once, after prefill has stored every layer; then, for each step, the views below and
// append(). Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cache/layout.h"
#include "cache/memory_plan.h"
#include "cache/stream_schedule.h"
#include "kernels/attention/op.h"
#include "kernels/segment.h"
#include "offload/device/device.h"
#include "runtime/kv/kv_backing.h"
#include "runtime/kv/recent_rows.h"

namespace headrace {

// Segment `index` as stored at `data`, with its whole capacity as rows. `keys`: its K, where data has V alone.
KvSegment segment_view(const RowShape& shape, const std::byte* data, int64_t index, const std::byte* keys = nullptr);

class KvCache {
 public:
  KvCache(Device& device, const RowShape& shape, const MemoryPlan& plan, int64_t pass_rows,
          std::unique_ptr<KvBacking> backing);
  ~KvCache();

  const RowShape& shape() const { return shape_; }               // as stored; recent() has rows of shape().exact()
  int64_t rows() const { return rows_; }                         // committed: L
  int64_t sealed_segments() const { return segment_of(rows_); }  // segments [0, this) are full
  int64_t resident_segments() const { return resident_; }        // of the layers with a backing
  int64_t host_layers() const { return host_layers_; }  // layers [0, this) have a backing; the others are resident
  const SegmentPlacement& placement() const { return backing_->placement(); }  // of the layers with a backing
  int64_t resident_segments(int64_t layer) const { return layer < host_layers_ ? resident_ : segments_; }

  // ---- prefill: storing a finished layer ----
  struct BuiltRows {
    int64_t end, kept = 0;
  };
  // Rows [0, rows) of a layer in the layout of cache/layout.h, from row 0: of shape(), and of shape().built(). Both are
  // the same memory if no type is low-bit. `keys`: as of segment_view().
  struct BuiltLayer {
    const std::byte *stored, *exact, *keys = nullptr;
    std::span<const KvSegment> copy{};  // the rows in int8, to encode the backing's remainders; empty: none are
  };
  // The rows of `layer` are complete once `compute` has run so far. Enqueues the copies to their tiers, and records
  // `copied` after the last read of `built`. Rows [0, kept) are there already.
  void store_layer(int64_t layer, const BuiltRows& rows, const BuiltLayer& built, Stream& compute, Event& copied);
  // Of a run after another with the same cache: keeps rows [0, kept) of those that there are. Blocks until no copy is
  // in flight. REQUIRES: nothing reads the backing.
  void keep(int64_t kept);
  // After keep(): a segment that prefill reads and writes where it stays, resident and of exact rows; none: it is built
  // elsewhere.
  std::optional<KvSegment> segment_in_place(int64_t layer, int64_t index) const;
  // Enqueues on `compute` the copy of the other rows that were kept, of a layer that is not stored yet, to where
  // store_layer(layer, rows) will read it, once `free` is done. Layers in order. Throws Error(kStorage).
  void restore_layer(int64_t layer, const BuiltRows& rows, std::byte* stored, const Event& free, Stream& compute);
  // The address of segment `index` of a prompt of `rows` rows once its layer is stored; its rows are not written again.
  // Null: on disk, or in memory that the answer overwrites. On the CPU nothing counts as "on the device".
  struct StoredSegment {
    const std::byte* data;
    bool on_device;
  };
  StoredSegment stored_segment(int64_t layer, int64_t index, int64_t rows);
  // Call once all layers are stored, or no further one will be: blocks until the copies have run. Discards rows from
  // `rows` on, which some layers may already have stored.
  void finish_prefill(int64_t rows);
  // Blocks until no copy reads prefill's buffers: for error paths.
  void drain() noexcept;

  // ---- decode ----
  // Segments [first, last) of a layer on the device, as attention reads them: resident ones, or the active one.
  KvSegment resident_segment(int64_t layer, int64_t index) const;
  KvSegment active_segment(int64_t layer) const;
  // The rows that the tail reads, and those of a pass.
  const RecentRows& recent() const { return recent_; }

  // Commits `count` rows: position rows() + j is pass row source[j] (device memory, `count` of them). They are
  // quantised as they enter the active segment, if it is low-bit. Enqueued on `compute`; a segment that becomes full is
  // offloaded afterwards.
  void append(const int32_t* source, int64_t count, Stream& compute);
  // Rows after rows() that only the tail holds: those of partial steps, which append() replaces. Position rows() +
  // pending_rows() + j is pass row source[j]. REQUIRES: at most kMaxPending in all.
  void append_pending(const int32_t* source, int64_t count, Stream& compute);
  int64_t pending_rows() const { return pending_; }
  int64_t committed_before() const { return rows_before_; }  // rows() before the last append()
  // Whether appending `count` rows seals a segment on disk. No read may be in flight then.
  bool fills_disk(int64_t count) const;
  KvBacking& backing() { return *backing_; }

 private:
  std::byte* resident_data(int64_t layer, int64_t index) const;
  std::byte* active_data(int64_t layer) const;  // the active segment, resident or not
  void encode_remainders(int64_t layer, int64_t end, const BuiltLayer& built);
  std::byte* keys_of(std::byte* data) const;  // null: `data` has them
  KvSegment view(std::byte* data, int64_t index) const;
  void fill_recent(int64_t layer, const BuiltRows& rows, const BuiltLayer& built);
  struct Segments {
    int64_t first, end;
  };
  void copy_to_device(std::byte* to, const BuiltLayer& built, const Segments& of, TraceName what);
  void append_inside(const int32_t* source, int64_t count, Stream& compute);
  void point_at_active(Stream& compute);
  void offload_segment(Stream& compute);
  std::vector<Chunk> backed_chunks(int64_t first, int64_t end) const;
  std::vector<Chunk> kept_chunks(int64_t layer) const;
  bool stores_on_disk(const BuiltRows& rows) const;

  const RowShape shape_;
  const bool on_gpu_;
  const int64_t segments_, resident_, host_layers_;
  uint64_t active_stride_ = 0, resident_bytes_ = 0, active_bytes_ = 0;  // without K that is made
  int64_t rows_ = 0, rows_before_ = 0, pending_ = 0;
  std::vector<int64_t> open_;  // [host_layers]: the segment that active_memory_ has, of each layer
  DeviceBuffer resident_memory_, active_memory_;
  RecentRows recent_;
  std::unique_ptr<KvBacking> backing_;  // last: its stream drains before the memory is freed
};

}  // namespace headrace
