// Pinned memory that a background thread allocates piece by piece, in order. Zeroing and pinning gigabytes takes from
// tenths of a second to seconds; other work proceeds meanwhile, including work that uses the first pieces. Each piece
// is a separate buffer, so no copy may cross from one to the next. The thread also reserves the budget; its exceptions
// are rethrown by at() and wait(). Owns the pieces. The destructor waits for the piece that is being allocated and
// allocates no further one. Thread: one at a time.
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
