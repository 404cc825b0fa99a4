// What this process may use of the machine: memory and cores, the limits of its control group (v1 or v2) included.
// Read anew at every call; owns nothing. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace headrace {

struct HostLimits {
  uint64_t total_bytes = 0;      // the machine's memory, or the control group's limit if that is less
  uint64_t available_bytes = 0;  // what could be taken now without swapping
  int cores = 1;

  uint64_t default_host_mem() const { return available_bytes / 5 * 3; }  // docs/design.md, section 11: 60%
};

// `root` stands before /proc and /sys, for tests. Throws Error when /proc/meminfo cannot be read.
HostLimits read_host_limits(const std::string& root = "");

// Throws Error(kDoesNotFit) if a budget is set above what there is. `bytes` 0: not set.
void check_against(const HostLimits& limits, std::string_view flag, uint64_t bytes);

}  // namespace headrace
