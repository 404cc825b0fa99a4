// What a figure was measured on. Reads /proc and the limits of this process anew at every call; owns nothing. Any
// thread.
#pragma once

#include <cstdint>
#include <string>

namespace headrace {

struct Machine {
  std::string cpu;  // "AMD EPYC"; "unknown" where the system does not say
  int cores = 1;    // that this process may use
  uint64_t memory_bytes = 0;
};

// `root` stands before /proc and /sys, for tests.
Machine read_machine(const std::string& root = "");

}  // namespace headrace
