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
  BackgroundPinnedBuffer();  // empty
  // Pieces of `piece_bytes`, the last one possibly shorter. REQUIRES: piece_bytes > 0.
  BackgroundPinnedBuffer(Device& device, uint64_t bytes, uint64_t piece_bytes, std::string what);
  BackgroundPinnedBuffer(BackgroundPinnedBuffer&&) noexcept;
  BackgroundPinnedBuffer& operator=(BackgroundPinnedBuffer&&) noexcept;
  ~BackgroundPinnedBuffer();

  bool begun() const { return work_ != nullptr; }
  // The address of the byte; the rest of its piece follows it. Blocks until the piece is allocated.
  std::byte* at(uint64_t offset);
  // Blocks until all pieces are allocated.
  void wait();

  double ms() const;         // time that the thread worked; complete after wait()
  double waited_ms() const;  // of that, time that at() and wait() blocked

 private:
  class Work;
  std::unique_ptr<Work> work_;
};

}  // namespace headrace
