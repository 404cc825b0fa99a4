// The body of the CPU backend's stream: a thread and a queue of fixed size. Owns both; borrows its pool, its progress
// and the device's links. Threads as in stream.h; tasks run on the stream's own thread.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "offload/device/cpu/pace.h"
#include "offload/device/cpu/progress.h"
#include "offload/device/cpu_stream.h"
#include "offload/device/device.h"
#include "offload/host/thread_annotations.h"
#include "offload/host/thread_pool.h"

namespace headrace {

// Borrowed by a stream; all of it outlives the stream.
struct CpuStreamParts {
  Device* device;
  ThreadPool* pool;  // the stream's thread is its worker 0
  ProgressPool* progress_pool;
  std::array<Pace*, kLinkCount> paces;  // by link; null: not paced
};

class CpuStreamBody final : public CpuStream {
 public:
  static constexpr size_t kQueueTasks = 256;

  CpuStreamBody(std::string_view name, const CpuStreamParts& parts);
  ~CpuStreamBody() override;

  void record(Event& event) override;
  void wait(const Event& event) override;
  void synchronize() override;
  void check() override;
  void* native() const override { return nullptr; }

 protected:
  void copy_bytes(void* dst, const void* src, size_t bytes, Link link) override;
  void push(Call call, const void* task, size_t bytes) override;

 private:
  enum class AfterError : uint8_t { kSkip, kRun };
  struct Slot {
    alignas(16) std::byte stored[kTaskBytes];
    Call call;
    AfterError after_error;
  };

  void push(Call call, const void* task, size_t bytes, AfterError after_error);
  void serve();
  void run(const Slot& slot) noexcept;

  const CpuStreamParts parts_;
  StreamProgress* const progress_;
  const uint64_t first_;  // the progress when it was lent
  const std::unique_ptr<Slot[]> slots_;
  std::atomic<uint64_t> enqueued_;  // continues from first_, as the progress does
  std::atomic<bool> stop_{false}, failed_{false};
  EventCount filled_;
  Mutex error_mutex_;
  std::exception_ptr error_ GUARDED_BY(error_mutex_);
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace headrace
