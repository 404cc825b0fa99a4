// Streams the part of the KV cache that is not on the device through a ring of fixed size, as far ahead of the compute
// as the ring has room, and continues from step to step: when a step's last chunk is consumed, the next step's first
// chunks are already in flight (docs/design.md, section 8, Streaming). The link's queue puts them in order with weights
// that stream, too. Owns the ring. If chunks come from disk, a separate thread fills the ring in the same order and
// waits for the disk; the computing thread waits only for a chunk that has not been submitted yet. Thread: one at a
// time.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "cache/stream_schedule.h"
#include "offload/device/link_queue.h"
#include "offload/device/ring.h"
#include "offload/host/thread_annotations.h"
#include "runtime/kv/kv_backing.h"
#include "runtime/kv/made_keys.h"

namespace headrace {

// The ring of a plan.
struct RowRing {
  int slots;
  uint64_t slot_bytes;
  std::vector<KeyMaker> keys{};  // of each of the backing's layers, if its segments have V alone
};

class KvStreamer final : private LinkQueue::Source {
 public:
  // `layers`: which layer of the model each of the backing's is. All references must outlive this.
  KvStreamer(Device& device, KvBacking& backing, LinkQueue& link, std::vector<int64_t> layers, const RowRing& ring);
  ~KvStreamer();
  KvStreamer(const KvStreamer&) = delete;
  KvStreamer& operator=(const KvStreamer&) = delete;

  // The next step streams every sealed segment of the backing's layers that is not resident. Replans, and drops what
  // was fetched ahead, only if a segment was sealed since the last step.
  void begin_step(int64_t sealed_segments);
  const StreamSchedule& schedule() const { return schedule_; }

  // The next chunk in order: layer 0's chunks, then layer 1's, …. `compute` waits for its bytes, makes the K of
  // segments that have V alone, and the rows of segments that arrive as remainders. `copy`: the layer's rows in int8,
  // if the backing has remainders. Throws Error(kStorage) if the bytes could not be read.
  void take(std::span<const KvSegment> copy, Stream& compute);
  // A segment of that chunk, until done().
  KvSegment segment(int64_t index) const;
  // All readers of the chunk are enqueued on `compute`; its slot is refilled after them.
  void done(Stream& compute);
  // Drops what was fetched ahead, so that nothing reads the backing; the next step starts over. REQUIRES: done() was
  // called for every chunk.
  void stop();
  uint64_t slot_bytes() const { return ring_.slot_bytes(); }

 private:
  struct Place {
    int64_t layer;
    const Chunk* chunk;
  };
  Place place(uint64_t number) const;
  void make_keys(Stream& compute) const;
  bool fetch(uint64_t number);  // false: the reads were stopped
  // ---- from host memory ----
  bool idle() const { return sealed_segments_ < 0 || schedule_.chunks.empty(); }
  LinkPlace next() const override;
  bool has_room() const override { return !idle() && filled_ < taken_ + static_cast<uint64_t>(ring_.slots()); }
  void fill() override { fetch(filled_++); }
  // ---- from disk ----
  bool from_disk() const { return thread_.joinable(); }
  void begin_disk();
  void serve() noexcept;
  void stop_reads() noexcept;  // stops the thread's fills and all reads

  KvBacking& backing_;
  LinkQueue& link_;
  const std::vector<int64_t> layers_;
  const std::vector<KeyMaker> key_makers_;
  DeviceBuffer keys_;  // made of a slot
  StreamSchedule schedule_;
  int64_t sealed_segments_ = -1;  // for which schedule_ was planned
  int64_t steps_ = 0;             // begun since then
  StagingRing ring_;
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
