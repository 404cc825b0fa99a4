#include "offload/spill/span_queue.h"

#include <utility>

#include "offload/host/clock.h"

namespace headrace {

SpanQueue::SpanQueue(const SpanQueueOptions& options)
    : options_(options),
      queue_(FileQueue::open(*options.file,
                             {.depth = options.most_depth, .body = options.body, .memory = options.memory})),
      depth_(options.most_depth) {}

void SpanQueue::start(FileOp op, const SpillSpan& span, std::byte* data, uint64_t tag) {
  for (uint64_t done = 0; done < span.bytes;) {
    while (queue_->pending() >= depth_) wait_for_one();
    if (op == FileOp::kRead && idle()) {
      const MutexLock lock(mutex_);
      busy_since_ns_ = host_now_ns();
    }
    const uint64_t bytes = options_.cut.request_bytes(span, done);
    queue_->submit({.op = op, .offset = span.offset + done, .data = data + done, .bytes = bytes, .tag = tag});
    done += bytes;
  }
}

void SpanQueue::wait_for_one() {
  const FileDone done = next_done();
  queue_->check(done);
  options_.on_done(done.request);
}

void SpanQueue::drain() noexcept {
  while (!idle()) {
    try {
      next_done();
    } catch (...) {  // who waits for it is told of the first error
    }
  }
}

FileDone SpanQueue::next_done() {
  const FileDone done = queue_->wait();
  if (!idle()) return done;
  const MutexLock lock(mutex_);
  if (busy_since_ns_ > 0) busy_ns_ += host_now_ns() - std::exchange(busy_since_ns_, 0);
  return done;
}

double SpanQueue::read_busy_ms() const {
  const MutexLock lock(mutex_);
  return static_cast<double>(busy_ns_ + (busy_since_ns_ > 0 ? host_now_ns() - busy_since_ns_ : 0)) / 1e6;
}

}  // namespace headrace
