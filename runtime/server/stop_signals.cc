#include "runtime/server/stop_signals.h"

#include <pthread.h>

#include <cstdlib>
#include <utility>

#include "cache/base.h"
#include "offload/host/start_thread.h"

namespace headrace {
namespace {

constexpr int kWake = SIGURG;  // ends the thread's wait; nobody else sends it

}  // namespace

StopSignals::StopSignals() {
  sigemptyset(&signals_);
  for (const int signal : {SIGINT, SIGTERM}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&signals_, signal);
  }
  sigaddset(&signals_, kWake);
  pthread_sigmask(SIG_BLOCK, &signals_, &before_);
}

StopSignals::~StopSignals() {
  if (thread_.joinable()) {
    {
      const MutexLock lock(mutex_);
      ends_ = true;
      changed_.notify_all();
    }
    pthread_kill(thread_.native_handle(), kWake);
    thread_.join();
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

void StopSignals::call(std::function<void()> stop, std::chrono::milliseconds most) {
  thread_ =
      start_thread("the thread that waits for signals", [this, most, stop = std::move(stop)] { wait(stop, most); });
}

void StopSignals::wait(const std::function<void()>& stop, std::chrono::milliseconds most) {
  int signal = 0;
  sigwait(&signals_, &signal);
  if (signal == kWake) return;
  const auto deadline = std::chrono::steady_clock::now() + most;
  stop();
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);  // a second signal acts as it would without us
  const MutexLock lock(mutex_);
  while (!ends_) {
    if (!changed_.wait_until(mutex_, deadline)) std::_Exit(static_cast<int>(ExitCode::kDone));
  }
}

}  // namespace headrace
