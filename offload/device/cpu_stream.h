// The CPU backend's stream, for the CPU bodies of kernels: tasks run on the stream's own thread, in order, and may use
// the device's thread pool (compute streams only). Tasks are stored in place, in a queue of fixed size: enqueueing
// allocates nothing and blocks while the queue is full.
#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "cache/base.h"
#include "offload/device/stream.h"
#include "offload/host/thread_pool.h"

namespace headrace {

class CpuStream : public Stream {
 public:
  static constexpr size_t kTaskBytes = 8448;  // holds the largest params struct

  // task(ThreadPool&): trivially copyable, as a params struct captured by value is. An exception is kept and rethrown
  // by synchronize().
  template <typename Task>
  void enqueue(const Task& task) {
    static_assert(std::is_trivially_copyable_v<Task> && sizeof(Task) <= kTaskBytes && alignof(Task) <= 16);
    push([](const void* stored, ThreadPool& pool) { (*static_cast<const Task*>(stored))(pool); }, &task, sizeof task);
  }

 protected:
  using Call = void (*)(const void* stored, ThreadPool& pool);
  CpuStream() : Stream(Backend::kCpu) {}
  virtual void push(Call call, const void* task, size_t bytes) = 0;
};

// REQUIRES: stream.backend() == Backend::kCpu.
inline CpuStream& cpu_stream(Stream& stream) {
  CHECK(stream.backend() == Backend::kCpu);
  return static_cast<CpuStream&>(stream);
}

}  // namespace headrace
