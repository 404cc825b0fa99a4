// Describes the machine of a measurement. Reads /proc and the limits of this process at every call; owns nothing. Any
// thread.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

struct Machine {
  std::string cpu;  // "AMD EPYC"; "unknown" if the system does not report it
  int cores = 1;    // that this process may use
  uint64_t memory_bytes = 0;
};

// `root` is prepended to /proc and /sys, for tests.
Machine read_machine(const std::string& root = "");

}  // namespace headrace
