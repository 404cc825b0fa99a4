// Streams the part of the KV cache that is not on the device through a ring of fixed size, one layer and more ahead of
// the compute, again and again: when a step's last chunk has been consumed, the next step's first ones are already on
// their way (docs/design.md, section 8, Streaming). Owns the ring and the stream on which rows come in. If chunks come
// from disk, a separate thread fills the ring in the same order and waits for the disk; the computing thread waits only
// for a chunk that has not been submitted yet. Thread: one at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
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

  // The coming step streams every sealed segment that is not resident, in the backing's layers. Plans anew, and
  // drops what was fetched ahead, only when a segment has sealed since the last step.
  void begin_step(int64_t sealed_segments);
  const StreamSchedule& schedule() const { return schedule_; }

  // The next chunk in order: layer 0's chunks, then layer 1's, …. `compute` waits for its bytes. Throws Error(kStorage)
  // where they could not be read.
  const std::byte* next(Stream& compute);
  // `compute` has been given all that reads the chunk; its slot is refilled behind it.
  void done(Stream& compute);
  // Drops what was fetched ahead, so that nothing reads the backing; the next step begins anew. REQUIRES: every chunk
  // that was given out is done.
  void stop();
  // Throws if the copies have failed so far; never blocks.
  void check() { in_->check(); }
  uint64_t slot_bytes() const { return ring_.slot_bytes(); }

 private:
  struct Place {
    int64_t layer;
    const Chunk* chunk;
  };
  Place place(uint64_t number) const;
  bool fill(uint64_t number);  // false: the reads have been stopped
  // ---- from disk ----
  bool from_disk() const { return thread_.joinable(); }
  void begin_disk();
  void serve() noexcept;
  void quiet() noexcept;  // the thread fills nothing, and nothing is read

  KvBacking& backing_;
  StreamSchedule schedule_;
  int64_t sealed_segments_ = -1;  // that schedule_ was planned for
  StagingRing ring_;
  std::unique_ptr<Stream> in_;
  uint64_t filled_ = 0, taken_ = 0;  // chunks since the schedule last changed

  Mutex mutex_;
  CondVar wake_, moved_;  // for the thread; for who waits for it
  uint64_t thread_filled_ GUARDED_BY(mutex_) = 0, released_ GUARDED_BY(mutex_) = 0;  // the same, between the two
  bool running_ GUARDED_BY(mutex_) = false, filling_ GUARDED_BY(mutex_) = false, quit_ GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ GUARDED_BY(mutex_);
  std::thread thread_;  // only where there is a disk; last
};

}  // namespace headrace
