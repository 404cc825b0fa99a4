#include "offload/device/cpu/stream.h"

#include <pthread.h>
#include <sys/prctl.h>

#include <cstring>
#include <utility>

#include "cache/base.h"
#include "offload/host/start_thread.h"

namespace headrace {

CpuStreamBody::CpuStreamBody(std::string_view name, const CpuStreamParts& parts)
    : parts_(parts),
      progress_(parts.progress_pool->borrow()),
      first_(progress_->finished()),
      slots_(std::make_unique_for_overwrite<Slot[]>(kQueueTasks)),  // not zeroed: unused pages stay untouched
      enqueued_(first_),
      thread_(start_thread(str("the thread of the stream '", name, "'"), [this] { serve(); })) {
  pthread_setname_np(thread_.native_handle(), std::string(name.substr(0, 15)).c_str());  // the kernel's limit
}

CpuStreamBody::~CpuStreamBody() {
  stop_.store(true);
  filled_.ring();
  thread_.join();
  parts_.progress_pool->give_back(progress_);
}

void CpuStreamBody::push(Call call, const void* task, size_t bytes) { push(call, task, bytes, AfterError::kSkip); }

void CpuStreamBody::push(Call call, const void* task, size_t bytes, AfterError after_error) {
  const uint64_t number = enqueued_.load(std::memory_order_relaxed);
  if (number - first_ >= kQueueTasks && progress_->finished() + kQueueTasks <= number) {
    progress_->wait_for(number - kQueueTasks / 2);  // full: wait until half is free, not for each slot
  }
  Slot& slot = slots_[number % kQueueTasks];
  std::memcpy(slot.stored, task, bytes);
  slot.call = call;
  slot.after_error = after_error;
  enqueued_.store(number + 1);
  filled_.ring();
}

void CpuStreamBody::serve() {
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns; paced copies sleep, and the default of 50 us would distort small ones
  for (uint64_t number = first_;; ++number) {
    const auto more = [&] { return enqueued_.load() != number; };
    filled_.wait(StreamProgress::kSpin, [&] { return more() || stop_.load(); });
    if (!more()) return;  // stopping, and drained
    run(slots_[number % kQueueTasks]);
    progress_->finish_one();
  }
}

void CpuStreamBody::run(const Slot& slot) noexcept {
  if (failed_.load() && slot.after_error == AfterError::kSkip) return;
  try {
    slot.call(slot.stored, *parts_.pool);
  } catch (...) {
    const MutexLock lock(error_mutex_);
    error_ = std::current_exception();
    failed_.store(true);
  }
}

void CpuStreamBody::copy_bytes(void* dst, const void* src, size_t bytes, Link link) {
  parts_.device->count(link, bytes);
  Pace* pace = parts_.paces[static_cast<size_t>(link)];
  enqueue([dst, src, bytes, pace](ThreadPool&) {
    if (bytes == 0) return;
    if (pace == nullptr) {
      std::memcpy(dst, src, bytes);
      return;
    }
    const Pace::Clock::time_point across = pace->claim(bytes);
    std::memcpy(dst, src, bytes);
    std::this_thread::sleep_until(across);
  });
}

void CpuStreamBody::record(Event& event) {
  static_cast<CpuEvent&>(event).set({progress_, enqueued_.load(std::memory_order_relaxed)});
}

void CpuStreamBody::wait(const Event& event) {
  const Mark mark = static_cast<const CpuEvent&>(event).mark();
  if (mark.progress == progress_ || mark.reached()) return;  // already ordered, or nothing to wait for
  const auto task = [mark](ThreadPool&) { mark.progress->wait_for(mark.tasks); };
  // Waits hold even after an error: this stream's later events also promise the progress of others.
  push([](const void* stored, ThreadPool& pool) { (*static_cast<const decltype(task)*>(stored))(pool); }, &task,
       sizeof task, AfterError::kRun);
}

void CpuStreamBody::synchronize() {
  progress_->wait_for(enqueued_.load());
  std::exception_ptr error;
  {
    const MutexLock lock(error_mutex_);
    error = std::exchange(error_, nullptr);
    failed_.store(false);
  }
  if (error) std::rethrow_exception(error);
}

void CpuStreamBody::check() {
  if (!failed_.load()) [[likely]]
    return;
  std::exception_ptr error;
  {
    const MutexLock lock(error_mutex_);
    error = error_;
  }
  if (error) std::rethrow_exception(error);
}

}  // namespace headrace
