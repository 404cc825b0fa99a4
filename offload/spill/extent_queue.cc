#include "offload/spill/extent_queue.h"

#include <utility>

#include "offload/host/clock.h"

namespace headrace {

ExtentQueue::ExtentQueue(const ExtentQueueOptions& options)
    : options_(options),
      queue_(FileQueue::open(*options.file, {.depth = options.depth, .body = options.body, .memory = options.memory})) {
}

void ExtentQueue::start(FileOp op, const Extent& extent, std::byte* data, uint64_t tag) {
  for (uint64_t done = 0; done < extent.bytes;) {
    while (queue_->pending() >= options_.depth) wait_for_one();
    if (op == FileOp::kRead && idle()) {
      const MutexLock lock(mutex_);
      busy_since_ns_ = host_now_ns();
    }
    const uint64_t bytes = options_.cut.request_bytes(extent, done);
    queue_->submit({.op = op, .offset = extent.offset + done, .data = data + done, .bytes = bytes, .tag = tag});
    done += bytes;
  }
}

void ExtentQueue::wait_for_one() {
  const FileDone done = next_done();
  queue_->check(done);
  options_.on_done(done.request);
}

void ExtentQueue::drain() noexcept {
  while (!idle()) {
    try {
      next_done();
    } catch (...) {  // waiters get the first error
    }
  }
}

FileDone ExtentQueue::next_done() {
  const FileDone done = queue_->wait();
  if (!idle()) return done;
  const MutexLock lock(mutex_);
  if (busy_since_ns_ > 0) busy_ns_ += host_now_ns() - std::exchange(busy_since_ns_, 0);
  return done;
}

double ExtentQueue::read_busy_ms() const {
  const MutexLock lock(mutex_);
  return static_cast<double>(busy_ns_ + (busy_since_ns_ > 0 ? host_now_ns() - busy_since_ns_ : 0)) / 1e6;
}

}  // namespace headrace
