// Where KV rows live that are not resident on the device: pinned host memory and, behind it, a file on disk. The one
// owner of both ways between the device and these tiers: KvCache offloads segments through it, KvStreamer fetches them
// back (docs/design.md, sections 8 and 9). Every layer of [0, layers()) has the same segments in the same tiers.
//
// Owns the host memory, the file and the stream on which rows leave. Thread: offloading and the reads' begin and stop
// from one thread; fetch() may run on another, between begin_reads() and stop_reads().
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "cache/memory_plan.h"
#include "cache/stream_schedule.h"
#include "offload/device/background_pinned_buffer.h"
#include "offload/device/device.h"
#include "offload/device/ring.h"
#include "offload/spill/spill_file.h"
#include "runtime/kv/spill_options.h"

namespace headrace {

struct KvBackingOptions {
  SpillOptions spill{};
  uint64_t host_piece_bytes = 256 * kMiB;  // host memory is pinned in pieces of whole layers, of about this size
};

class KvBacking {
 public:
  // Takes the plan's disk space, and begins to pin its host memory on a thread of its own. Throws Error(kStorage) for
  // the disk; errors of the host memory come out of the calls that need it.
  KvBacking(Device& device, const RowShape& shape, const MemoryPlan& plan, const KvBackingOptions& options);
  ~KvBacking();
  // Host memory that a plan's backing takes.
  static uint64_t pinned_bytes(const MemoryPlan& plan);

  const RowShape& shape() const { return shape_; }
  int64_t layers() const { return layers_; }
  const SegmentPlacement& placement() const { return placement_; }

  // ---- out ----
  // What is enqueued on out() until mark_offloaded() runs after all that `compute` has been given so far.
  void begin_offload(Stream& compute);
  // A chunk of a layer leaves `from`, device memory. Blocks while the disk is behind.
  void offload_chunk(int64_t layer, const Chunk& chunk, const std::byte* from);
  // offloaded() is done once all chunks so far have left.
  void mark_offloaded() { out_->record(*offloaded_); }
  const Event& offloaded() const { return *offloaded_; }
  Stream& out() { return *out_; }
  // Blocks until the last chunks are on disk; those on their way to host memory may still be.
  void finish_writes() {
    if (disk_) disk_->finish_writes();
  }
  // Blocks until all host memory is pinned: its errors come out here at the latest.
  void wait_for_host_memory() { host_memory_.wait(); }
  // Whether a segment in [first, end) lives on disk.
  bool on_disk(int64_t first, int64_t end) const;
  // The host memory that a segment in the host tier lies in; blocks until it is pinned.
  const std::byte* host_segment(int64_t layer, int64_t index) {
    return host_data(layer) + placement_.offset_bytes(index);
  }

  // ---- in ----
  bool has_disk() const { return disk_ != nullptr; }
  // The disk reads the schedule's chunks from now on, layer after layer, again and again. REQUIRES: nothing is being
  // offloaded.
  void begin_reads(const StreamSchedule& schedule);
  // Fetches a chunk into fill `number` of the ring, on `in`. Chunks on disk come in the order of the schedule; the call
  // blocks until the disk has the next one. False: the reads have been stopped.
  bool fetch(int64_t layer, const Chunk& chunk, uint64_t number, StagingRing& ring, Stream& in);
  // A fetch() that waits returns. Blocks until the disk is quiet.
  void stop_reads() noexcept;

  // Throws what has failed so far; never blocks.
  void check();
  SpillFile* disk() { return disk_.get(); }  // null: nothing lives on disk
  const BackgroundPinnedBuffer& host_memory() const { return host_memory_; }

 private:
  std::byte* host_data(int64_t layer);  // waits for the layer's piece
  Extent disk_span(int64_t layer, const Chunk& chunk) const;

  const RowShape shape_;
  const int64_t layers_;
  const SegmentPlacement placement_;
  BackgroundPinnedBuffer host_memory_;
  std::unique_ptr<SpillFile> disk_;
  std::unique_ptr<Event> built_, offloaded_;
  std::unique_ptr<Stream> out_;  // last, so that it drains before the memory goes
};

}  // namespace headrace
