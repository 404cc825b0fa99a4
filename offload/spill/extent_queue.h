// Reads and writes extents of a file as requests, a limited number at a time, and measures how long reads were in
// flight. Owns a queue of requests; borrows file and memory. Thread: one at a time; read_busy_ms() and const functions
// from any.
#pragma once

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
  int depth = 0;  // most requests in flight
  FileQueueBody body = FileQueueBody::kAuto;
  std::span<std::byte> memory{};
  // Called for each finished request; its tag is the extent's.
  std::function<void(const FileRequest&)> on_done{};
};

class ExtentQueue {
 public:
  explicit ExtentQueue(const ExtentQueueOptions& options);

  // Submits the requests of the extent. If the queue is full, waits for earlier requests and passes them to on_done.
  // Throws the Error of a failed request.
  void start(FileOp op, const Extent& extent, std::byte* data, uint64_t tag);
  void wait_for_one();  // passes it to on_done. REQUIRES: !idle()
  // Waits for all requests in flight, without on_done.
  void drain() noexcept;

  bool idle() const { return queue_->pending() == 0; }
  double read_busy_ms() const;  // time with reads in flight
  const FileQueue& requests() const { return *queue_; }

 private:
  FileDone next_done();

  const ExtentQueueOptions options_;
  const std::unique_ptr<FileQueue> queue_;
  mutable Mutex mutex_;
  int64_t busy_ns_ GUARDED_BY(mutex_) = 0;
  int64_t busy_since_ns_ GUARDED_BY(mutex_) = 0;  // 0: no reads in flight
};

}  // namespace headrace
