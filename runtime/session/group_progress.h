// How far prefill is, for who watches it. Thread: the executor's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>

#include "offload/device/device.h"
#include "runtime/base/progress.h"

namespace headrace {

// Observers of long work; each may be null.
struct Watcher {
  Progress* progress = nullptr;
  const std::atomic<bool>* interrupt = nullptr;  // set: stop after the work that is enqueued
};

constexpr size_t kGroupsAhead = 4;  // the host enqueues at most this far ahead: progress and Ctrl-C stay prompt

// Reports progress as groups finish, a few groups behind the host, and notices an interrupt.
class GroupProgress {
 public:
  GroupProgress(Device& device, Stream& stream, const Watcher& watcher) : stream_(stream), watcher_(watcher) {
    for (std::unique_ptr<Event>& event : events_) event = device.make_event();
  }
  // A group is enqueued, and with it `done` units of the stage. False: stop.
  bool enqueued(int64_t done) {
    const size_t slot = count_++ % kGroupsAhead;
    events_[slot]->synchronize();  // the group kGroupsAhead before this one
    if (watcher_.progress) watcher_.progress->update(done_[slot]);
    stream_.record(*events_[slot]);
    done_[slot] = done;
    return watcher_.interrupt == nullptr || !watcher_.interrupt->load(std::memory_order_relaxed);
  }

 private:
  Stream& stream_;
  const Watcher watcher_;
  std::array<std::unique_ptr<Event>, kGroupsAhead> events_;
  std::array<int64_t, kGroupsAhead> done_{};
  size_t count_ = 0;
};

}  // namespace headrace
