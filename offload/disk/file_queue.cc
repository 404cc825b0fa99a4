#include "offload/disk/file_queue.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "cache/base.h"
#include "offload/disk/file_faults.h"

namespace headrace {
namespace {

// Tries of an operation that keeps being interrupted or deferred: most follow at once, the others after a pause, which
// gives the system half a second in all.
constexpr int kMaxTries = 600, kTriesAtOnce = 100;
constexpr std::chrono::milliseconds kPause{1};

bool transient(int error) { return error == EINTR || error == EAGAIN || error == EBUSY; }

}  // namespace

std::unique_ptr<FileQueue> FileQueue::open(const File& file, const FileQueueOptions& options) {
  CHECK(options.depth > 0, "depth=", options.depth);
  if (options.body == FileQueueBody::kThreads) return open_threads_queue(file, options, "");
  int error = 0;
  std::unique_ptr<FileQueue> queue = open_uring_queue(file, options, &error);
  if (queue) return queue;
  if (options.body == FileQueueBody::kIoUring) {
    throw_error(ExitCode::kStorage, "io_uring", str("is not available: ", std::strerror(error)));
  }
  return open_threads_queue(file, options, std::strerror(error));
}

FileQueue::FileQueue(const File& file, int depth) : file_(file), slots_(static_cast<size_t>(depth)) {
  free_.reserve(slots_.size());
  refused_.reserve(slots_.size());
  for (int slot = depth - 1; slot >= 0; --slot) free_.push_back(slot);
}

FileRequest FileQueue::Slot::rest() const {
  FileRequest part = request;
  part.offset += done;
  part.data += done;
  part.bytes -= done;
  return part;
}

void FileQueue::submit(const FileRequest& request) {
  CHECK(!full(), "depth=", depth());
  CHECK(request.op == FileOp::kRead || request.op == FileOp::kWrite);
  CHECK(request.bytes > 0);
  const int slot = free_.back();
  free_.pop_back();
  ++pending_;
  slots_[static_cast<size_t>(slot)] = {.request = request};
  begin(slot);
}

void FileQueue::begin(int slot) {
  FileRequest part = slots_[static_cast<size_t>(slot)].rest();
  if (FileFaults* const faults = file_faults()) [[unlikely]] {
    const FileFault fault = faults->before(part.op, file_.path(), part.offset, part.bytes);
    part.bytes = std::min(part.bytes, fault.at_most);
    if (fault.error != 0) return refused_.push_back({.slot = slot, .value = -fault.error});
  }
  const int error = start(slot, part);
  if (error != 0) refused_.push_back({.slot = slot, .value = -error});
}

FileDone FileQueue::wait() {
  CHECK(pending_ > 0);
  for (;;) {
    Result result;
    if (refused_.empty()) {
      result = next();
    } else {
      result = refused_.back();
      refused_.pop_back();
    }
    FileDone done;
    if (!go_on(result, &done)) continue;
    free_.push_back(result.slot);
    --pending_;
    FileFaults* const faults = file_faults();
    if (faults != nullptr && done.error == 0 && done.request.op == FileOp::kRead) [[unlikely]] {
      faults->after_read(file_.path(), done.request.offset, {done.request.data, done.request.bytes});
    }
    return done;
  }
}

// A direct file continues at a multiple of its alignment only. A read of 0 bytes is the end of the file, a write of 0
// bytes a full disk.
bool FileQueue::go_on(const Result& result, FileDone* done) {
  Slot& slot = slots_[static_cast<size_t>(result.slot)];
  const int error = result.value < 0 ? static_cast<int>(-result.value) : 0;
  if (!transient(error) && error != 0) {
    *done = {.request = slot.request, .error = error};
    return true;
  }
  const uint64_t before = slot.done;
  if (error == 0) slot.done += static_cast<uint64_t>(result.value);
  if (slot.done == slot.request.bytes) {
    *done = {.request = slot.request};
    return true;
  }
  if (file_.direct()) slot.done -= slot.done % File::kAlign;
  slot.tries = slot.done > before ? 0 : slot.tries + 1;
  const bool read = slot.request.op == FileOp::kRead;
  if (error == 0 && slot.tries > 0) {
    *done = {.request = slot.request, .error = read ? ENODATA : ENOSPC};
    return true;
  }
  if (slot.tries > kMaxTries) {
    *done = {.request = slot.request, .error = error};
    return true;
  }
  if (slot.tries > kTriesAtOnce) {
    std::this_thread::sleep_for(kPause);
  } else if (slot.tries > 1) {
    std::this_thread::yield();
  }
  begin(result.slot);
  return false;
}

void FileQueue::check(const FileDone& done) const {
  if (done.error != 0) file_.fail(done.request.op, done.request.offset, done.request.bytes, done.error);
}

}  // namespace headrace
