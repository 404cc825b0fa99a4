// KV rows that are not resident on the device: in pinned host memory and, beyond it, in a file on disk. The single
// owner of both directions between the device and these tiers: KvCache offloads segments through it, KvStreamer fetches
// them back (docs/design.md, sections 8 and 9). Every layer of [0, layers()) has the same segments in the same tiers.
//
// Owns the host memory, the file and the stream for outgoing rows. Thread: offloading, begin_reads() and stop_reads()
// from one thread; fetch() may run on another between those two.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cache/memory_plan.h"
#include "cache/stream_schedule.h"
#include "offload/device/background_pinned_buffer.h"
#include "offload/device/device.h"
#include "offload/device/link_queue.h"
#include "offload/device/ring.h"
#include "offload/spill/spill_file.h"
#include "runtime/kv/row_remainders.h"
#include "runtime/kv/spill_options.h"

namespace headrace {

struct KvBackingOptions {
  SpillOptions spill{};
  uint64_t host_piece_bytes = 256 * kMiB;  // host memory is pinned in pieces of whole layers, of about this size
};

class KvBacking {
 public:
  // Allocates the plan's disk space, and starts a thread that pins its host memory. Throws Error(kStorage) for the
  // disk; errors of the host memory are rethrown by the calls that need it.
  KvBacking(Device& device, const RowShape& shape, const MemoryPlan& plan, const KvBackingOptions& options);
  ~KvBacking();
  // Host memory of a plan's backing.
  static uint64_t pinned_bytes(const MemoryPlan& plan);

  const RowShape& shape() const { return shape_; }
  int64_t layers() const { return layers_; }
  const SegmentPlacement& placement() const { return placement_; }

  // ---- device to host and disk ----
  // Work enqueued on out() until mark_offloaded() runs after all work enqueued on `compute` so far.
  void begin_offload(Stream& compute);
  // Copies a chunk of a layer from device memory. Blocks while the disk is behind.
  void offload_chunk(int64_t layer, const Chunk& chunk, const std::byte* from);
  // Records offloaded(), which completes once all chunks so far are copied.
  void mark_offloaded() { out_->record(*offloaded_); }
  const Event& offloaded() const { return *offloaded_; }
  Stream& out() { return *out_; }
  // Blocks until the last chunks are on disk; copies to host memory may still be in flight.
  void finish_writes() {
    if (disk_) disk_->finish_writes();
  }
  // Blocks until the rows' host memory is pinned, and rethrows its errors.
  void wait_for_host_memory() { host_memory_.wait(); }
  // Whether a segment in [first, end) is on disk.
  bool on_disk(int64_t first, int64_t end) const;
  // The address of a segment in the host tier; blocks until its memory is pinned.
  const std::byte* host_segment(int64_t layer, int64_t index) {
    return host_data(layer) + placement_.offset_bytes(index);
  }

  // ---- host and disk to device ----
  bool has_disk() const { return disk_ != nullptr; }
  // Starts reading the schedule's chunks from disk, layer after layer, repeatedly. REQUIRES: nothing is being
  // offloaded.
  void begin_reads(const StreamSchedule& schedule);
  // Fetches a chunk into fill `number` of the ring, on `link`: each segment at its place, its remainders if it has
  // some, else its rows. Chunks on disk arrive in the order of the schedule; blocks until the next one has been read.
  // False: the reads were stopped.
  bool fetch(int64_t layer, const Chunk& chunk, uint64_t number, StagingRing& ring, LinkQueue& link);
  // Copies the chunks of a layer, all of a run of its segments, to where they begin, in device memory. Called for layer
  // after layer; `later`: the chunks on disk of the layers that follow, which are read ahead. All of them must be read
  // back before end_read_back(). REQUIRES: nothing is being offloaded. Throws Error(kStorage).
  void read_back(int64_t layer, const std::vector<Chunk>& chunks, std::byte* to, const std::vector<Extent>& later,
                 Stream& stream);
  // Before anything is written to the disk, too: blocks until `stream` has copied what was read back.
  void end_read_back(Stream& stream);
  // Adds the extents of those chunks that are on disk.
  void add_extents(int64_t layer, const std::vector<Chunk>& chunks, std::vector<Extent>* extents) const;

  // Makes a waiting fetch() return, and blocks until the disk is idle.
  void stop_reads() noexcept;

  // Throws earlier failures; never blocks.
  void check();
  SpillFile* disk() { return disk_.get(); }                  // null: no disk tier
  RowRemainders* remainders() { return remainders_.get(); }  // null: all rows are streamed as they are
  const BackgroundPinnedBuffer& host_memory() const { return host_memory_; }

 private:
  Extent disk_extent(int64_t layer, const Chunk& chunk) const;
  std::byte* host_data(int64_t layer);                                      // blocks until the layer's piece is pinned
  std::vector<StagingRing::Part> parts(int64_t layer, const Chunk& chunk);  // REQUIRES: in host memory

  const RowShape shape_;
  const int64_t layers_;
  const SegmentPlacement placement_;
  BackgroundPinnedBuffer host_memory_;
  std::unique_ptr<SpillFile> disk_;
  std::unique_ptr<RowRemainders> remainders_;
  bool reading_back_ = false;  // the disk reads for read_back()
  std::unique_ptr<Event> built_, offloaded_;
  std::unique_ptr<Stream> out_;  // last: it drains before the memory is freed
};

}  // namespace headrace
