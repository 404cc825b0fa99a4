// How far a CPU stream has come, and what an event is: a place in that progress. Owned by the device, which lends it to
// one stream after the other and outlives events, so that an event may go, or be recorded anew, while others wait for
// its old record. Any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/base.h"
#include "offload/device/stream.h"
#include "offload/host/event_count.h"
#include "offload/host/thread_annotations.h"

namespace headrace {

// Counts finished tasks; never goes back.
class StreamProgress {
 public:
  static constexpr std::chrono::microseconds kSpin{5};  // then sleep: the cores belong to the compute workers

  uint64_t finished() const { return finished_.load(); }
  void finish_one() {
    const uint64_t now = finished_.load(std::memory_order_relaxed) + 1;  // one writer: the stream's thread
    finished_.store(now);
    if (now < wake_at_.load()) return;  // whoever sleeps waits for more than this
    wake_at_.store(UINT64_MAX);
    bell_.ring();
  }
  void wait_for(uint64_t tasks) {
    if (finished() >= tasks) return;
    // Asked anew at every look, for another's ringing clears it. The look comes last, and a sleeper notes the rings so
    // far before it asks (see EventCount): a request cleared by a ring that it has not seen lets it look again.
    bell_.wait(kSpin, [&] {
      uint64_t asked = wake_at_.load();
      while (tasks < asked && !wake_at_.compare_exchange_weak(asked, tasks)) {
      }
      return finished() >= tasks;
    });
  }

 private:
  std::atomic<uint64_t> finished_{0};
  std::atomic<uint64_t> wake_at_{UINT64_MAX};  // the least that anybody asked to be woken at
  EventCount bell_;
};

// StreamProgress outlives the stream that it was lent to: the next stream counts on from there.
class ProgressPool {
 public:
  StreamProgress* borrow() {
    const MutexLock lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(all_.size() + 1);  // so that give_back() allocates nothing
      return all_.emplace_back(std::make_unique<StreamProgress>()).get();
    }
    StreamProgress* const progress = idle_.back();
    idle_.pop_back();
    return progress;
  }
  void give_back(StreamProgress* progress) noexcept {
    const MutexLock lock(mutex_);
    idle_.push_back(progress);
  }

 private:
  Mutex mutex_;
  std::vector<std::unique_ptr<StreamProgress>> all_ GUARDED_BY(mutex_);
  std::vector<StreamProgress*> idle_ GUARDED_BY(mutex_);
};

// Recording is a note of how many tasks the stream had been given by then; it takes no place in the queue.
struct Mark {
  StreamProgress* progress = nullptr;  // null: never recorded
  uint64_t tasks = 0;
  bool reached() const { return progress == nullptr || progress->finished() >= tasks; }
};

class CpuEvent final : public Event {
 public:
  bool done() const override { return mark().reached(); }
  void synchronize() override {
    const Mark now = mark();
    if (now.progress != nullptr) now.progress->wait_for(now.tasks);
  }
  Mark mark() const {
    const MutexLock lock(mutex_);
    return mark_;
  }
  void set(Mark mark) {
    const MutexLock lock(mutex_);
    mark_ = mark;
  }

 private:
  mutable Mutex mutex_;
  Mark mark_ GUARDED_BY(mutex_);
};

}  // namespace headrace
