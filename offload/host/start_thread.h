// Starts threads. If the system refuses one (a limit on processes or memory), the Error says which. All stacks have one
// size, independent of RLIMIT_STACK. Owns nothing. Any thread.
#pragma once

#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {

// REQUIRES: called in a catch block for an exception of std::thread. Rethrows it as Error(kDoesNotFit). `what`: "the
// thread that reads from disk".
[[noreturn]] void refuse_thread(const std::string& what);

// Several times the deepest stack of ours: attention on the CPU, about 900 KiB. Untouched pages take no memory.
constexpr size_t kThreadStackBytes = size_t{4} << 20;
// Sets that size for all threads that the process starts later; std::thread has no parameter for it. The functions
// below call it.
void set_thread_stacks() noexcept;

template <typename Body>
std::thread start_thread(const std::string& what, Body body) {
  set_thread_stacks();
  try {
    return std::thread(std::move(body));
  } catch (...) {
    refuse_thread(what);
  }
}

// Starts up to `most` threads, each of which runs body(number). Throws Error(kDoesNotFit) if none can be started.
template <typename Body>
std::vector<std::thread> start_threads(size_t most, const std::string& what, Body body) {
  set_thread_stacks();
  std::vector<std::thread> threads;
  threads.reserve(most);
  for (size_t i = 0; i < most; ++i) {
    try {
      threads.emplace_back(body, i);
    } catch (...) {  // the threads that run must be joined, whatever failed
      if (threads.empty()) refuse_thread(what);
      break;
    }
  }
  return threads;
}

}  // namespace headrace
