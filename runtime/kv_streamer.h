// Streams the host part of the KV cache through a ring of fixed size, one layer and more ahead of the compute, again
// and again: when a step's last chunk has been consumed, the next step's first ones are already on their way (DESIGN
// section 8, Streaming). Owns the ring and the stream on which rows come in. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "cache/movement.h"
#include "offload/ring.h"
#include "runtime/kv_cache.h"

namespace headrace {

class KvStreamer {
 public:
  KvStreamer(Device& device, KvCache& cache, int slots, uint64_t slot_bytes);

  // The coming step streams every closed segment that is not resident, in the cache's host_layers(). Plans anew, and
  // drops what was fetched ahead, only when a segment has closed since the last step.
  void begin_step(int64_t closed_segments);
  const StepMovement& movement() const { return movement_; }

  // The next chunk in order: layer 0's chunks, then layer 1's, …. `compute` waits for its bytes.
  const std::byte* next(Stream& compute);
  // `compute` has been given all that reads the chunk; its slot is refilled behind it.
  void done(Stream& compute);
  // Throws if the copies have failed so far; never blocks.
  void check() { in_->check(); }
  uint64_t slot_bytes() const { return ring_.slot_bytes(); }

 private:
  void fill_one();

  KvCache& cache_;
  StepMovement movement_;
  int64_t closed_segments_ = -1;  // that movement_ was planned for
  StagingRing ring_;
  std::unique_ptr<Stream> in_;
  uint64_t filled_ = 0, taken_ = 0;  // chunks since the movement last changed
};

}  // namespace headrace
