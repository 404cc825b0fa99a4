// Spans of a file, read and written as requests, so many at a time; and how long the disk has had reads to do. Owns a
// queue of requests; borrows file and memory. Thread: one at a time; read_busy_ms() and what is const from any.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "offload/disk/file_queue.h"
#include "offload/host/thread_annotations.h"
#include "offload/spill/extent.h"

namespace headrace {

struct ExtentQueueOptions {
  const File* file = nullptr;
  SpillCut cut;
  int depth = 0;  // requests under way at most
  FileQueueBody body = FileQueueBody::kAuto;
  std::span<std::byte> memory{};
  // Each request that is done; its tag is the extent's.
  std::function<void(const FileRequest&)> on_done{};
};

class ExtentQueue {
 public:
  explicit ExtentQueue(const ExtentQueueOptions& options);

  // Submits the requests of the extent, waiting for others, and passing them on, while there is no room. Throws what
  // has failed.
  void start(FileOp op, const Extent& extent, std::byte* data, uint64_t tag);
  void wait_for_one();  // and passes it on. REQUIRES: !idle()
  // Waits for what is under way, and passes nothing on.
  void drain() noexcept;

  bool idle() const { return queue_->pending() == 0; }
  double read_busy_ms() const;  // that reads have been under way
  const FileQueue& requests() const { return *queue_; }

 private:
  FileDone next_done();

  const ExtentQueueOptions options_;
  const std::unique_ptr<FileQueue> queue_;
  mutable Mutex mutex_;
  int64_t busy_ns_ GUARDED_BY(mutex_) = 0;
  int64_t busy_since_ns_ GUARDED_BY(mutex_) = 0;  // 0: no reads are under way
};

}  // namespace headrace
