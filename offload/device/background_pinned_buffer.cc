#include "offload/device/background_pinned_buffer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "offload/host/clock.h"
#include "offload/host/thread_annotations.h"

namespace headrace {

class BackgroundPinnedBuffer::Work {
 public:
  Work(Device& device, uint64_t bytes, uint64_t piece_bytes, std::string what)
      : device_(device),
        bytes_(bytes),
        piece_bytes_(piece_bytes),
        what_(std::move(what)),
        pieces_(static_cast<size_t>(bytes / piece_bytes + (bytes % piece_bytes != 0))) {
    // If the system starts no thread, the first caller of at() or wait() allocates.
    if (bytes > 0) coming_ = std::async(std::launch::async | std::launch::deferred, [this] { take_all(); });
  }
  ~Work() { stop_.store(true); }  // the destructor of coming_, the last member, waits

  std::byte* at(uint64_t offset) {
    CHECK(offset < bytes_, offset, " of ", bytes_, " bytes");
    const auto piece = static_cast<size_t>(offset / piece_bytes_);
    wait_for(piece + 1);
    return pieces_[piece].data() + offset % piece_bytes_;
  }
  void wait() { wait_for(pieces_.size()); }

  double ms() {
    const MutexLock lock(mutex_);
    return ms_;
  }
  double waited_ms() const { return waited_ms_; }

 private:
  void take_all() noexcept;
  void wait_for(size_t pieces);

  Device& device_;
  const uint64_t bytes_, piece_bytes_;
  const std::string what_;
  std::vector<PinnedBuffer> pieces_;  // beyond taken_ the thread's, below it the caller's
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  CondVar came_;
  size_t taken_ GUARDED_BY(mutex_) = 0;
  double ms_ GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ GUARDED_BY(mutex_);

  size_t seen_ = 0;  // the caller's copy of taken_
  double waited_ms_ = 0;
  std::future<void> coming_;  // last: its destructor waits for the thread
};

void BackgroundPinnedBuffer::Work::take_all() noexcept {
  for (size_t i = 0; i < pieces_.size() && !stop_.load(); ++i) {
    const HostClock::time_point start = HostClock::now();
    std::exception_ptr error;
    try {
      pieces_[i] = device_.allocate_pinned(std::min(piece_bytes_, bytes_ - i * piece_bytes_), what_);
    } catch (...) {
      error = std::current_exception();
      stop_.store(true);
    }
    const MutexLock lock(mutex_);
    ms_ += ms_since(start);
    error_ = error;
    if (error == nullptr) taken_ = i + 1;
    came_.notify_one();
  }
}

void BackgroundPinnedBuffer::Work::wait_for(size_t pieces) {
  if (pieces <= seen_) return;
  const HostClock::time_point start = HostClock::now();
  if (coming_.wait_for(std::chrono::seconds(0)) == std::future_status::deferred) coming_.wait();
  const MutexLock lock(mutex_);
  while (taken_ < pieces && error_ == nullptr) came_.wait(mutex_);
  seen_ = taken_;
  waited_ms_ += ms_since(start);
  if (seen_ < pieces) std::rethrow_exception(error_);
}

BackgroundPinnedBuffer::BackgroundPinnedBuffer() = default;
BackgroundPinnedBuffer::BackgroundPinnedBuffer(Device& device, uint64_t bytes, uint64_t piece_bytes, std::string what)
    : work_(std::make_unique<Work>(device, bytes, piece_bytes, std::move(what))) {}
BackgroundPinnedBuffer::BackgroundPinnedBuffer(BackgroundPinnedBuffer&&) noexcept = default;
BackgroundPinnedBuffer& BackgroundPinnedBuffer::operator=(BackgroundPinnedBuffer&&) noexcept = default;
BackgroundPinnedBuffer::~BackgroundPinnedBuffer() = default;

std::byte* BackgroundPinnedBuffer::at(uint64_t offset) {
  CHECK(begun());
  return work_->at(offset);
}
void BackgroundPinnedBuffer::wait() {
  if (begun()) work_->wait();
}
double BackgroundPinnedBuffer::ms() const { return begun() ? work_->ms() : 0; }
double BackgroundPinnedBuffer::waited_ms() const { return begun() ? work_->waited_ms() : 0; }

}  // namespace headrace
