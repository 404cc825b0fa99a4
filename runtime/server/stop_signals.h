// SIGINT and SIGTERM as a call: the first one calls back, a second one ends the program at once. Made before any other
// thread starts, because threads inherit the mask that keeps the signals from them. Owns a thread. Thread: one.
#pragma once

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

  void call(std::function<void()> stop);  // at the first signal, on a thread of its own; once

 private:
  void wait(const std::function<void()>& stop);

  sigset_t signals_ = {}, before_ = {};
  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool ends_ GUARDED_BY(mutex_) = false;
};

}  // namespace headrace
