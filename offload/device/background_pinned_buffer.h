// Pinned memory that a thread of its own takes, piece by piece and in order: zeroing and pinning gigabytes takes the
// system from a few tenths of a second to seconds, and other work, that which uses the first pieces too, can go on
// meanwhile. Each piece is a buffer of its own: no copy may cross from one to the next. The budget is asked there too;
// whatever is thrown comes out of at() and wait(). Owns the pieces; when destroyed it waits for the piece that is being
// taken, and takes no further one. Thread: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "offload/device/device.h"

namespace headrace {

class BackgroundPinnedBuffer {
 public:
  BackgroundPinnedBuffer();  // nothing is taken
  // Pieces of `piece_bytes`, the last one of what is left. REQUIRES: piece_bytes > 0.
  BackgroundPinnedBuffer(Device& device, uint64_t bytes, uint64_t piece_bytes, std::string what);
  BackgroundPinnedBuffer(BackgroundPinnedBuffer&&) noexcept;
  BackgroundPinnedBuffer& operator=(BackgroundPinnedBuffer&&) noexcept;
  ~BackgroundPinnedBuffer();

  bool begun() const { return work_ != nullptr; }
  // Where the byte stands, and behind it the rest of its piece. Blocks until the piece is there.
  std::byte* at(uint64_t offset);
  // Blocks until all is there.
  void wait();

  double ms() const;         // that the thread has worked; all that it took, after wait()
  double waited_ms() const;  // of that, how long at() and wait() have blocked

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace headrace
