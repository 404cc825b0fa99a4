#include "cli/print/interrupt.h"

#include <unistd.h>

#include <cerrno>

namespace headrace {
namespace {

std::atomic<bool> requested_flag{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler may set it

// Only async-signal-safe calls. SA_RESETHAND has restored the default action, so a second Ctrl-C ends the program.
void on_interrupt(int) {
  const int saved = errno;
  requested_flag.store(true, std::memory_order_relaxed);
  constexpr char kMessage[] = "\nInterrupted: finishing the current step (again to stop at once)\n";
  [[maybe_unused]] const ssize_t ignored = ::write(STDERR_FILENO, kMessage, sizeof kMessage - 1);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt() {
  requested_flag.store(false, std::memory_order_relaxed);
  sigaction(SIGINT, nullptr, &old_);
  if (old_.sa_handler == SIG_IGN) return;  // started in the background: Ctrl-C is not meant for this process
  struct sigaction action = {};
  action.sa_handler = on_interrupt;
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { sigaction(SIGINT, &old_, nullptr); }

const std::atomic<bool>* Interrupt::flag() const { return &requested_flag; }

}  // namespace headrace
