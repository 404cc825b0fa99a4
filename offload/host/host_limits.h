// Memory and cores that this process may use, the limits of its control group (v1 or v2) included. Reads the system at
// every call; owns nothing. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

struct HostLimits {
  uint64_t total_bytes = 0;      // the machine's memory, or the control group's limit if that is lower
  uint64_t available_bytes = 0;  // allocatable now without swapping
  int cores = 1;

  uint64_t default_host_mem() const { return available_bytes / 5 * 3; }  // docs/design.md, section 11: 60%
};

// `root` is prepended to /proc and /sys, for tests. Throws Error if /proc/meminfo cannot be read.
HostLimits read_host_limits(const std::string& root = "");

// Throws Error(kDoesNotFit) if a budget exceeds what is available. `bytes` 0: not set.
void check_against(const HostLimits& limits, std::string_view flag, uint64_t bytes);

}  // namespace headrace
