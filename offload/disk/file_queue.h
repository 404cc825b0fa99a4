// Reads and writes of one file, many at a time: requests go in, and come out done in any order. Two bodies: io_uring
// with the file and the memory registered, and, where the system does not allow it (many containers), threads that
// pread and pwrite. What is done only in part is taken up again; what was interrupted is tried again.
// Owns its ring or its threads; borrows the file. Thread: one at a time. Nothing is allocated once it is made.
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
  std::byte* data = nullptr;  // until it is done; with a direct file all three are multiples of File::kAlign
  uint64_t bytes = 0;
  uint64_t tag = 0;  // the caller's own
};

struct FileDone {
  FileRequest request;
  int error = 0;  // an errno, or 0: all bytes are read or written
};

enum class FileQueueBody : uint8_t { kAuto, kIoUring, kThreads };

struct FileQueueOptions {
  int depth = 32;  // requests under way at most
  FileQueueBody body = FileQueueBody::kAuto;
  // Where requests' data mostly lies: registered with the system once instead of with each request, where it allows so.
  std::span<std::byte> memory{};
};

class FileQueue {
 public:
  // kAuto takes io_uring if the system allows it. kIoUring: Error(kStorage) if it does not.
  static std::unique_ptr<FileQueue> open(const File& file, const FileQueueOptions& options);
  virtual ~FileQueue() = default;  // waits for what is under way
  FileQueue(const FileQueue&) = delete;
  FileQueue& operator=(const FileQueue&) = delete;

  int depth() const { return static_cast<int>(slots_.size()); }
  int pending() const { return pending_; }
  bool full() const { return pending_ == depth(); }
  // "io_uring"; "16 threads (io_uring: Operation not permitted)"
  virtual std::string describe() const = 0;
  // Requests that run at most; the others of those under way wait.
  virtual int concurrency() const = 0;

  void submit(const FileRequest& request);  // REQUIRES: not full()
  FileDone wait();                          // REQUIRES: pending() > 0
  // Throws Error(kStorage) if `done` has failed.
  void check(const FileDone& done) const;

 protected:
  struct Slot {
    FileRequest request;
    uint64_t done = 0;  // bytes
    int tries = 0;      // without any byte
    FileRequest rest() const;
  };
  struct Result {
    int slot = 0;
    int64_t value = 0;  // bytes, or -errno
  };
  FileQueue(const File& file, int depth);

  // Starts the slot's operation, of at most what `part` says; its result comes out of next().
  virtual void start(int slot, const FileRequest& part) = 0;
  virtual Result next() = 0;  // blocks

  const File& file_;

 private:
  void begin(int slot);
  bool go_on(const Result& result, FileDone* done);  // false: it has been started again

  std::vector<Slot> slots_;
  std::vector<int> free_;
  std::vector<Result> refused_;  // by a fault
  int pending_ = 0;
};

// The bodies. Null, with the errno in `error`, where the system does not allow io_uring.
std::unique_ptr<FileQueue> open_uring_queue(const File& file, const FileQueueOptions& options, int* error);
// `why`: not io_uring; may be empty.
std::unique_ptr<FileQueue> open_threads_queue(const File& file, const FileQueueOptions& options,
                                              const std::string& why);

}  // namespace headrace
