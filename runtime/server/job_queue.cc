#include "runtime/server/job_queue.h"

#include <algorithm>
#include <utility>

namespace headrace {

JobQueue::Push JobQueue::push(std::shared_ptr<Job> job) {
  const MutexLock lock(mutex_);
  if (closed_) return Push::kClosed;
  if (jobs_.size() >= most_waiting_ + (current_ ? 0 : 1)) return Push::kFull;
  jobs_.push_back(std::move(job));
  came_.notify_one();
  return Push::kQueued;
}

std::shared_ptr<Job> JobQueue::pop() {
  const MutexLock lock(mutex_);
  while (jobs_.empty() && !closed_) came_.wait(mutex_);
  if (closed_) return nullptr;
  current_ = std::move(jobs_.front());
  jobs_.pop_front();
  return current_;
}

void JobQueue::done() {
  const MutexLock lock(mutex_);
  current_.reset();
}

bool JobQueue::withdraw(Job& job, IfRunning running) {
  const MutexLock lock(mutex_);
  const auto at = std::find_if(jobs_.begin(), jobs_.end(), [&job](const auto& each) { return each.get() == &job; });
  if (at == jobs_.end()) {
    if (running == IfRunning::kCancel) job.cancelled = true;
    return false;
  }
  jobs_.erase(at);
  return true;
}

void JobQueue::close() {
  const MutexLock lock(mutex_);
  closed_ = true;
  for (const std::shared_ptr<Job>& job : jobs_) job->feed.fail(server_stops());
  jobs_.clear();
  if (current_) {
    current_->feed.fail(server_stops());  // at once: its step may take a while
    current_->cancelled = true;
  }
  came_.notify_all();
}

size_t JobQueue::waiting() const {
  const MutexLock lock(mutex_);
  return jobs_.size();
}

bool JobQueue::running() const {
  const MutexLock lock(mutex_);
  return current_ != nullptr;
}

}  // namespace headrace
