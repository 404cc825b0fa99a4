// Reads blocks of a saved prefix in prefill's order, ahead of it: threads read into a pinned ring and compare
// checksums, so disk, link and compute overlap. A failed read, or one with wrong bytes, is an outcome and not an error:
// its rows are computed again. Owns the ring and the threads; borrows the files. Thread: one at a time.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "offload/device/device.h"
#include "offload/disk/file.h"
#include "offload/host/thread_annotations.h"

namespace headrace {

class PrefixLoader {
 public:
  struct Read {
    const File* file = nullptr;
    uint64_t offset = 0, bytes = 0;
    uint64_t checksum = 0;
    size_t block = 0;  // the caller's own
  };

  // Pinned memory of the ring.
  static uint64_t ring_bytes(uint64_t largest_read, uint64_t reads);
  PrefixLoader(Device& device, std::vector<Read> reads);
  ~PrefixLoader();  // REQUIRES: no copy from the ring is in flight

  // The bytes of the next read, once complete; null: the read failed.
  const std::byte* next();
  // All readers of the bytes are enqueued on `stream`.
  void done(Stream& stream);
  const Read& current() const { return reads_[consumed()]; }
  std::string failure() const;  // valid after a null

 private:
  enum class State : uint8_t { kOpen, kThere, kFailed };
  size_t consumed() const;
  void serve();
  void read(size_t index);

  const std::vector<Read> reads_;
  uint64_t slot_bytes_ = 0;
  size_t slots_ = 1;
  PinnedBuffer ring_;
  std::vector<std::unique_ptr<Event>> used_;  // by slot: its previous content has been read
  mutable Mutex mutex_;
  CondVar came_, room_;
  std::vector<State> states_ GUARDED_BY(mutex_);
  std::exception_ptr error_ GUARDED_BY(mutex_);  // the latest
  size_t begun_ GUARDED_BY(mutex_) = 0, consumed_ GUARDED_BY(mutex_) = 0;
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace headrace
