// The progress of a CPU stream; an event is a position in it. The device owns it and lends it to one stream after
// another. It outlives events, so an event may be destroyed or recorded again while others wait for its previous
// record. Any thread.
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
  static constexpr std::chrono::microseconds kSpin{5};  // then sleep, and leave the cores to the compute workers

  uint64_t finished() const { return finished_.load(); }
  void finish_one() {
    const uint64_t now = finished_.load(std::memory_order_relaxed) + 1;  // one writer: the stream's thread
    finished_.store(now);
    if (now < wake_at_.load()) return;  // all sleepers wait for a later task
    wake_at_.store(UINT64_MAX);
    bell_.ring();
  }
  void wait_for(uint64_t tasks) {
    if (finished() >= tasks) return;
    // The request is renewed at every check, because another thread's ring clears it. The check comes last, and a
    // sleeper reads the ring count before it requests (see EventCount). So a request that an unseen ring clears is
    // checked again.
    bell_.wait(kSpin, [&] {
      uint64_t asked = wake_at_.load();
      while (tasks < asked && !wake_at_.compare_exchange_weak(asked, tasks)) {
      }
      return finished() >= tasks;
    });
  }

 private:
  std::atomic<uint64_t> finished_{0};
  std::atomic<uint64_t> wake_at_{UINT64_MAX};  // the lowest requested wake-up
  EventCount bell_;
};

// A StreamProgress outlives the stream that it was lent to; the next stream continues its count.
class ProgressPool {
 public:
  StreamProgress* borrow() {
    const MutexLock lock(mutex_);
    if (idle_.empty()) {
      idle_.reserve(all_.size() + 1);  // give_back() must not allocate
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

// A record notes how many tasks the stream had been given; it takes no place in the queue.
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
