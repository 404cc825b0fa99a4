// A mutex, a lock and a condition variable that clang's -Wthread-safety checks. Each member names the mutex that guards
// it; reading or writing it without that mutex does not compile (tests/run.sh --tidy). They wrap the standard library's
// types at no cost. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#if defined(__clang__)
#define HEADRACE_THREAD(attribute) __attribute__((attribute))
#else
#define HEADRACE_THREAD(attribute)
#endif

#define GUARDED_BY(mutex) HEADRACE_THREAD(guarded_by(mutex))             // a member
#define REQUIRES(...) HEADRACE_THREAD(requires_capability(__VA_ARGS__))  // a function, called with the mutex locked

namespace headrace {

class HEADRACE_THREAD(capability("mutex")) Mutex {
 public:
  void lock() HEADRACE_THREAD(acquire_capability()) { mutex_.lock(); }
  void unlock() HEADRACE_THREAD(release_capability()) { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class HEADRACE_THREAD(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) HEADRACE_THREAD(acquire_capability(mutex)) : mutex_(mutex) { mutex.lock(); }
  ~MutexLock() HEADRACE_THREAD(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// Unlocks the mutex while it is alive, and locks it again at the end of the scope, exceptions included.
class HEADRACE_THREAD(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) HEADRACE_THREAD(release_capability(mutex)) : mutex_(mutex) { mutex.unlock(); }
  ~MutexUnlock() HEADRACE_THREAD(release_capability()) { mutex_.lock(); }  // to clang: the end of the scope's effect
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

// Wait in a loop, `while (!ready_) came_.wait(mutex_)`: clang would check a predicate lambda as a function that does
// not hold the mutex.
class CondVar {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False after the deadline.
  bool wait_until(Mutex& mutex, std::chrono::steady_clock::time_point deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool in_time = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace headrace
