// Threads that the system may refuse (a limit of processes or of memory): an Error then says which one was to be
// started. Their stacks have one size, whatever RLIMIT_STACK says. Owns nothing. Any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {

// REQUIRES: in a catch, of what std::thread has thrown. Throws it as Error(kDoesNotFit), be it the system's refusal or
// that of memory. `what`: "the thread that reads from disk".
[[noreturn]] void refuse_thread(const std::string& what);

// Several times what the deepest of ours needs: attention on the CPU, some 700 KiB. Pages that are not reached take
// nothing.
constexpr size_t kThreadStackBytes = size_t{4} << 20;
// Makes that the size for all threads that the process starts from here on; std::thread takes none of its own. The
// functions below call it.
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

// As many as the system gives, of `most`; each runs body(number). Throws Error(kDoesNotFit) where it gives none.
template <typename Body>
std::vector<std::thread> start_threads(size_t most, const std::string& what, Body body) {
  set_thread_stacks();
  std::vector<std::thread> threads;
  threads.reserve(most);
  for (size_t i = 0; i < most; ++i) {
    try {
      threads.emplace_back(body, i);
    } catch (...) {  // whatever it is: those that run are to be joined
      if (threads.empty()) refuse_thread(what);
      break;
    }
  }
  return threads;
}

}  // namespace headrace
