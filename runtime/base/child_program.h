// Runs a program without a shell: it reads a file descriptor as standard input, and both of its outputs are kept. Its
// time, memory and output are limited. The child is started so that it copies no page table: a fork of a process with
// pinned memory would copy that memory. It has no descriptor but 0, 1 and 2, and of the environment PATH alone, in a
// UTF-8 locale. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headrace {

// The first executable file of this name in the absolute folders of PATH.
std::optional<std::string> find_program(const std::string& name);

struct ChildLimits {
  double seconds = 120;                          // by the clock
  uint64_t memory_bytes = uint64_t{4} << 30;     // address space
  uint64_t output_bytes = uint64_t{256} << 20;   // of standard output
  const std::atomic<bool>* interrupt = nullptr;  // ends the child if it is set
};

struct ChildResult {
  enum class End { kExited, kSignal, kTooSlow, kTooLong, kInterrupted } end = End::kExited;
  int code = 0;     // exit code, or number of the signal
  std::string out;  // kTooLong: more than output_bytes
  std::string err;  // its first 4 KiB
};

// `args`: without the program's own name. The child and what it starts are killed at a limit. Throws Error(kDoesNotFit)
// if no process or pipe can be had, and Error(kBadInput) if the program cannot be executed.
ChildResult run_child(const std::string& program, const std::vector<std::string>& args, int standard_input,
                      const ChildLimits& limits);

}  // namespace headrace
