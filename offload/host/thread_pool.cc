#include "offload/host/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "offload/host/event_count.h"
#include "offload/host/start_thread.h"
#include "offload/host/thread_annotations.h"

namespace headrace {
namespace {

// Decode runs about 300 loops a step, a few microseconds apart: the spin bridges those gaps, but leaves the cores of an
// idle pool to the copies and the main thread.
constexpr std::chrono::microseconds kSpin{30};

// Pieces of a loop per thread: few enough that handing them out is cheap, enough that the last one is short.
constexpr int64_t kPiecesPerThread = 32;

// `state`: the number of the loop, whether it may still be joined, and how many workers are in it. A worker reads the
// loop's fields only after it has joined, and the caller returns only when all that joined have left. So the caller
// never waits for a worker that wakes late, and such a worker never sees a finished loop.
constexpr uint64_t kOpen = uint64_t{1} << 31;
constexpr uint64_t kInside = kOpen - 1;
constexpr uint64_t number(uint64_t state) { return state >> 32; }

}  // namespace

struct ThreadPool::Impl {
  explicit Impl(int threads) : thread_count(threads) {}

  const int thread_count;
  std::vector<std::thread> workers;
  std::atomic<bool> stop{false};

  // The current loop: the caller writes these fields while nobody is inside.
  int64_t count = 0, piece = 1;
  Call call = nullptr;
  const void* context = nullptr;

  Mutex error_mutex;
  std::exception_ptr error;  // first exception of the loop; the caller reads it once nobody is inside

  alignas(64) std::atomic<uint64_t> state{0};
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) EventCount opened;
  alignas(64) EventCount left;

  void take_part(int worker) noexcept {
    try {
      for (;;) {
        const int64_t begin = next.fetch_add(piece, std::memory_order_relaxed);
        if (begin >= count) return;
        const int64_t end = std::min(begin + piece, count);
        for (int64_t index = begin; index < end; ++index) call(context, index, worker);
      }
    } catch (...) {
      next.store(count, std::memory_order_relaxed);
      const MutexLock lock(error_mutex);
      if (error == nullptr) error = std::current_exception();
    }
  }

  void serve(int worker) {
    uint64_t last = 0;
    const auto joinable = [&](uint64_t now) { return (now & kOpen) != 0 && number(now) != last; };
    for (;;) {
      opened.wait(kSpin, [&] { return joinable(state.load()) || stop.load(); });
      uint64_t now = state.load();
      if (!joinable(now)) {
        if (stop.load()) return;
        continue;
      }
      if (!state.compare_exchange_strong(now, now + 1)) continue;
      last = number(now);
      take_part(worker);
      if ((state.fetch_sub(1) & (kOpen | kInside)) == 1) left.ring();  // the last to leave a closed loop
    }
  }
};

ThreadPool::ThreadPool(int threads) : impl_(std::make_unique<Impl>(threads)) {
  CHECK(threads >= 1, "threads=", threads);
  impl_->workers.reserve(static_cast<size_t>(threads));
  try {
    for (int worker = 1; worker < threads; ++worker) {
      impl_->workers.push_back(
          start_thread(str("worker ", worker), [impl = impl_.get(), worker] { impl->serve(worker); }));
      pthread_setname_np(impl_->workers.back().native_handle(), str("worker ", worker).c_str());
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::stop() noexcept {
  impl_->stop.store(true);
  impl_->opened.ring();
  for (std::thread& worker : impl_->workers) worker.join();
}

int ThreadPool::threads() const { return impl_->thread_count; }

void ThreadPool::run(int64_t count, Call call, const void* context) {
  CHECK(count >= 0, "count=", count);
  if (count <= 1 || impl_->thread_count == 1) {
    for (int64_t index = 0; index < count; ++index) call(context, index, 0);
    return;
  }
  Impl& impl = *impl_;
  const uint64_t before = impl.state.load();
  CHECK((before & (kOpen | kInside)) == 0, "parallel_for() while another loop runs in this pool");
  impl.count = count;
  impl.piece = std::max<int64_t>(1, count / (impl.thread_count * kPiecesPerThread));
  impl.call = call;
  impl.context = context;
  impl.next.store(0, std::memory_order_relaxed);
  impl.state.store((number(before) + 1) << 32 | kOpen);
  impl.opened.ring();
  impl.take_part(0);
  if ((impl.state.fetch_and(~kOpen) & kInside) != 0) {
    impl.left.wait(kSpin, [&] { return (impl.state.load() & kInside) == 0; });
  }
  if (impl.error != nullptr) [[unlikely]]
    std::rethrow_exception(std::exchange(impl.error, nullptr));
}

}  // namespace headrace
