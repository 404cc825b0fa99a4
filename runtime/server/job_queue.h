// The requests that wait for the engine, first in, first out, and the one that it works on. Bounded. Thread: any; one
// thread, the engine's, pops.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>

#include "offload/host/thread_annotations.h"
#include "runtime/server/job.h"

namespace headrace {

class JobQueue {
 public:
  // `most_waiting`: requests that wait beside the one that runs.
  explicit JobQueue(size_t most_waiting) : most_waiting_(most_waiting) {}

  enum class Push { kQueued, kFull, kClosed };
  Push push(std::shared_ptr<Job> job);
  // The next job, which runs until done(). Waits; null: the queue is closed.
  std::shared_ptr<Job> pop();
  void done();
  enum class IfRunning { kKeep, kCancel };  // a cancelled run ends at its next step
  // Takes the job out of the queue. False: it has begun, or has ended.
  bool withdraw(Job& job, IfRunning running);
  // All jobs fail with status 503, the running one is cancelled, and nothing is queued any more.
  void close();

  size_t waiting() const;
  bool running() const;
  const std::atomic<bool>* closed() const { return &closed_; }

 private:
  const size_t most_waiting_;
  std::atomic<bool> closed_{false};
  mutable Mutex mutex_;
  CondVar came_;
  std::deque<std::shared_ptr<Job>> jobs_ GUARDED_BY(mutex_);
  std::shared_ptr<Job> current_ GUARDED_BY(mutex_);
};

}  // namespace headrace
