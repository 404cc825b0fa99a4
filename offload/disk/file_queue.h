// Reads and writes of one file, many at a time, completed in any order. Two bodies: io_uring with the file and the
// memory registered; and, if the system does not allow it (many containers), threads that call pread and pwrite.
// Partial operations are continued, interrupted and deferred ones retried for a limited time. Owns its ring or its
// threads; borrows the file. Thread: one at a time. Allocates only when it is opened.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "offload/disk/file.h"

namespace headrace {

struct FileRequest {
  FileOp op = FileOp::kRead;  // or kWrite
  uint64_t offset = 0;
  std::byte* data = nullptr;  // until the request is done; for a direct file all three are multiples of File::kAlign
  uint64_t bytes = 0;
  uint64_t tag = 0;  // the caller's own
};

struct FileDone {
  FileRequest request;
  int error = 0;  // an errno, or 0: all bytes transferred
};

enum class FileQueueBody : uint8_t { kAuto, kIoUring, kThreads };

struct FileQueueOptions {
  int depth = 32;  // most requests in flight
  FileQueueBody body = FileQueueBody::kAuto;
  // Memory of most requests: registered once with the system, if allowed, instead of with each request.
  std::span<std::byte> memory{};
};

class FileQueue {
 public:
  // kAuto uses io_uring if the system allows it. kIoUring: Error(kStorage) if not.
  static std::unique_ptr<FileQueue> open(const File& file, const FileQueueOptions& options);
  virtual ~FileQueue() = default;  // waits for requests in flight
  FileQueue(const FileQueue&) = delete;
  FileQueue& operator=(const FileQueue&) = delete;

  int depth() const { return static_cast<int>(slots_.size()); }
  int pending() const { return pending_; }
  bool full() const { return pending_ == depth(); }
  // "io_uring"; "16 threads (io_uring: Operation not permitted)"
  virtual std::string describe() const = 0;
  // Most requests that run at once; further ones in flight wait.
  virtual int concurrency() const = 0;

  void submit(const FileRequest& request);  // REQUIRES: not full()
  FileDone wait();                          // REQUIRES: pending() > 0
  // Throws Error(kStorage) if `done` failed.
  void check(const FileDone& done) const;

 protected:
  struct Slot {
    FileRequest request;
    uint64_t done = 0;  // bytes
    int tries = 0;      // without progress
    FileRequest rest() const;
  };
  struct Result {
    int slot = 0;
    int64_t value = 0;  // bytes, or -errno
  };
  FileQueue(const File& file, int depth);

  // Starts the slot's operation on `part`; next() returns its result. Returns 0, or the errno if the system does not
  // take the operation, which then has no other result.
  virtual int start(int slot, const FileRequest& part) = 0;
  virtual Result next() = 0;  // blocks

  const File& file_;

 private:
  void begin(int slot);
  bool go_on(const Result& result, FileDone* done);  // false: continued by another operation

  std::vector<Slot> slots_;
  std::vector<int> free_;
  std::vector<Result> refused_;  // not started
  int pending_ = 0;
};

// The bodies. Returns null and sets `error` to the errno if the system does not allow io_uring.
std::unique_ptr<FileQueue> open_uring_queue(const File& file, const FileQueueOptions& options, int* error);
// `why`: the reason against io_uring; may be empty.
std::unique_ptr<FileQueue> open_threads_queue(const File& file, const FileQueueOptions& options,
                                              const std::string& why);

}  // namespace headrace
