// Ctrl-C: the first asks the running work to finish its step and return its results, the second ends the program at
// once. Owns the handler of SIGINT while it exists; one at a time. The flag may be read from any thread.
#pragma once

#include <atomic>
#include <csignal>

namespace headrace {

class Interrupt {
 public:
  Interrupt();  // installs the handler
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>* flag() const;

 private:
  struct sigaction old_ = {};
};

}  // namespace headrace
