// Streams the part of the KV cache that is not on the device through a ring of fixed size, as far ahead of the compute
// as the ring has room, and continues from step to step: when a step's last chunk is consumed, the next step's first
// chunks are already in flight (docs/design.md, section 8, Streaming). Owns the ring and the stream for incoming rows.
// If chunks come from disk, a separate thread fills the ring in the same order and waits for the disk; the computing
// thread waits only for a chunk that has not been submitted yet. Thread: one at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <thread>

#include "cache/stream_schedule.h"
#include "offload/device/ring.h"
#include "offload/host/thread_annotations.h"
#include "runtime/kv/kv_backing.h"

namespace headrace {

class KvStreamer {
 public:
  KvStreamer(Device& device, KvBacking& backing, int slots, uint64_t slot_bytes);
  ~KvStreamer();
  KvStreamer(const KvStreamer&) = delete;
  KvStreamer& operator=(const KvStreamer&) = delete;

  // The next step streams every sealed segment of the backing's layers that is not resident. Replans, and drops what
  // was fetched ahead, only if a segment was sealed since the last step.
  void begin_step(int64_t sealed_segments);
  const StreamSchedule& schedule() const { return schedule_; }

  // The next chunk in order: layer 0's chunks, then layer 1's, …. `compute` waits for its bytes, and makes the rows of
  // segments that arrive as remainders. `copy`: the layer's rows in int8, if the backing has remainders. Throws
  // Error(kStorage) if the bytes could not be read.
  void next(std::span<const KvSegment> copy, Stream& compute);
  // A segment of that chunk, until done().
  KvSegment segment(int64_t index) const;
  // All readers of the chunk are enqueued on `compute`; its slot is refilled after them.
  void done(Stream& compute);
  // Drops what was fetched ahead, so that nothing reads the backing; the next step starts over. REQUIRES: done() was
  // called for every chunk.
  void stop();
  // Throws if a copy has failed; never blocks.
  void check() { in_->check(); }
  uint64_t slot_bytes() const { return ring_.slot_bytes(); }

 private:
  struct Place {
    int64_t layer;
    const Chunk* chunk;
  };
  Place place(uint64_t number) const;
  bool fill(uint64_t number);  // false: the reads were stopped
  // ---- from disk ----
  bool from_disk() const { return thread_.joinable(); }
  void begin_disk();
  void serve() noexcept;
  void stop_reads() noexcept;  // stops the thread's fills and all reads

  KvBacking& backing_;
  StreamSchedule schedule_;
  int64_t sealed_segments_ = -1;  // for which schedule_ was planned
  StagingRing ring_;
  std::unique_ptr<Stream> in_;
  uint64_t filled_ = 0, taken_ = 0;                    // chunks since the schedule last changed
  const std::byte *slot_ = nullptr, *made_ = nullptr;  // of the chunk in use: as it arrived, and rows that were made

  Mutex mutex_;
  CondVar wake_, moved_;  // for the thread; for those that wait for it
  uint64_t thread_filled_ GUARDED_BY(mutex_) = 0, released_ GUARDED_BY(mutex_) = 0;  // the same, shared with the thread
  bool running_ GUARDED_BY(mutex_) = false, filling_ GUARDED_BY(mutex_) = false, quit_ GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  std::thread thread_;  // only with a disk tier; last
};

}  // namespace headrace
