// An event count, with which threads of the CPU backend wait for each other: a short spin, then sleep in the kernel
// until ring(). A ring costs one load if nobody sleeps. Owns two counters. Any number of threads may wait and ring.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace headrace {

class EventCount {
 public:
  // Returns once ready() is true. ready() reads atomics with sequential consistency; the thread that makes it true
  // writes them likewise and then rings. So no wake-up is lost: either the waiter sees the write, or the ringer sees
  // the sleeper.
  template <typename Ready>
  void wait(std::chrono::nanoseconds spin, const Ready& ready) {
    if (spin_until(spin, ready)) return;
    sleepers_.fetch_add(1);
    for (;;) {
      const uint32_t seen = rings_.load();
      if (ready()) break;
      rings_.wait(seen);
    }
    sleepers_.fetch_sub(1);
  }

  void ring() {
    if (sleepers_.load() == 0) return;
    rings_.fetch_add(1);
    rings_.notify_all();
  }

 private:
  template <typename Ready>
  static bool spin_until(std::chrono::nanoseconds spin, const Ready& ready) {
    if (ready()) return true;
    const auto start = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - start < spin) {
      for (int i = 0; i < 16; ++i) {
        pause();
        if (ready()) return true;
      }
    }
    return false;
  }

  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  std::atomic<uint32_t> rings_{0}, sleepers_{0};
};

}  // namespace headrace
