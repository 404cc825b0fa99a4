// The body over threads that block in pread and pwrite.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "offload/disk/file_queue.h"
#include "offload/host/fifo.h"
#include "offload/host/start_thread.h"
#include "offload/host/thread_annotations.h"

namespace headrace {
namespace {

constexpr int kMaxThreads = 16;  // enough to keep a solid-state disk busy; they are mostly blocked

class ThreadsQueue final : public FileQueue {
 public:
  ThreadsQueue(const File& file, int depth, std::string why)
      : FileQueue(file, depth),
        why_(std::move(why)),
        waiting_(static_cast<size_t>(depth)),
        finished_(static_cast<size_t>(depth)),
        threads_(start_threads(static_cast<size_t>(std::min(depth, kMaxThreads)),
                               "a thread that reads and writes files", [this](size_t) { serve(); })) {}
  ~ThreadsQueue() override {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    came_.notify_all();
    for (std::thread& thread : threads_) thread.join();  // each finishes its current request
  }

  std::string describe() const override {
    return str(threads_.size(), " threads", why_.empty() ? "" : " (io_uring: " + why_ + ")");
  }
  int concurrency() const override { return static_cast<int>(threads_.size()); }

 protected:
  int start(int slot, const FileRequest& part) override {
    {
      const MutexLock lock(mutex_);
      waiting_.push({slot, part});
    }
    came_.notify_one();
    return 0;
  }

  Result next() override {
    const MutexLock lock(mutex_);
    while (finished_.empty()) done_.wait(mutex_);
    return finished_.pop();
  }

 private:
  struct Job {
    int slot = 0;
    FileRequest part;
  };
  void serve();
  Result carry_out(const Job& job) REQUIRES(mutex_);  // unlocks mutex_ during the operation

  const std::string why_;
  Mutex mutex_;
  CondVar came_, done_;
  Fifo<Job> waiting_ GUARDED_BY(mutex_);
  Fifo<Result> finished_ GUARDED_BY(mutex_);
  bool stop_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // last
};

void ThreadsQueue::serve() {
  const MutexLock lock(mutex_);
  for (;;) {
    while (!stop_ && waiting_.empty()) came_.wait(mutex_);
    if (stop_) return;
    const Job job = waiting_.pop();
    finished_.push(carry_out(job));
    done_.notify_one();
  }
}

FileQueue::Result ThreadsQueue::carry_out(const Job& job) {
  const MutexUnlock unlock(mutex_);
  const FileRequest& part = job.part;
  const auto offset = static_cast<off_t>(part.offset);
  const ssize_t value = part.op == FileOp::kRead ? ::pread(file_.fd(), part.data, part.bytes, offset)
                                                 : ::pwrite(file_.fd(), part.data, part.bytes, offset);
  return {.slot = job.slot, .value = value < 0 ? -errno : value};
}

}  // namespace

std::unique_ptr<FileQueue> open_threads_queue(const File& file, const FileQueueOptions& options,
                                              const std::string& why) {
  return std::make_unique<ThreadsQueue>(file, options.depth, why);
}

}  // namespace headrace
