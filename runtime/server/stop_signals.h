// SIGINT and SIGTERM as a call: the first one calls back, a second one ends the program at once. So does the time after
// the first, with exit code 0, where the program is in the middle of something that cannot be stopped. Made before any
// other thread starts, because threads inherit the mask that keeps the signals from them. Owns a thread. Thread: one.
#pragma once

#include <chrono>
#include <csignal>
#include <functional>
#include <thread>

#include "offload/host/thread_annotations.h"

namespace headrace {

class StopSignals {
 public:
  StopSignals();  // blocks the signals; those that the process ignores stay ignored
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // `stop`: called at the first signal, on a thread of its own; once. If this still lives `most` after it, the program
  // ends.
  void call(std::function<void()> stop, std::chrono::milliseconds most);

 private:
  void wait(const std::function<void()>& stop, std::chrono::milliseconds most);

  sigset_t signals_ = {}, before_ = {};
  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool ends_ GUARDED_BY(mutex_) = false;
};

}  // namespace headrace
