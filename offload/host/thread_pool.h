// The CPU backend's workers: a fixed pool that runs one parallel loop at a time. The calling thread takes part. Results
// never depend on the number of threads: the unit of work is an index, and kernels keep one order of sums per row.
// Thread: parallel_for() from one thread at a time (CHECKed), except for a pool of one thread, which has no state.
// parallel_for() does not allocate.
#pragma once

#include <cstdint>
#include <memory>

namespace headrace {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // >= 1, the caller included
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls body(index, worker) for every index in [0, count), worker in [0, threads()), and returns when all are done.
  // Indices are handed out dynamically in ascending order. If a body throws, no further indices are handed out, and the
  // first exception is rethrown once all threads have finished. Bodies must not call parallel_for().
  template <typename Body>
  void parallel_for(int64_t count, const Body& body) {
    run(
        count,
        [](const void* context, int64_t index, int worker) { (*static_cast<const Body*>(context))(index, worker); },
        &body);
  }

 private:
  using Call = void (*)(const void* context, int64_t index, int worker);
  void run(int64_t count, Call call, const void* context);
  void stop() noexcept;

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
