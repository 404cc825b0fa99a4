// The host's clock for measured times: monotonic. Any thread.
#pragma once

#include <chrono>
#include <cstdint>

namespace headrace {

using HostClock = std::chrono::steady_clock;

inline double seconds_since(HostClock::time_point start) {
  return std::chrono::duration<double>(HostClock::now() - start).count();
}
inline double ms_since(HostClock::time_point start) { return seconds_since(start) * 1e3; }
// Since 1970, to compare with the times of files.
inline int64_t wall_now_ns() {
  return std::chrono::system_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}
inline int64_t host_now_ns() { return HostClock::now().time_since_epoch() / std::chrono::nanoseconds(1); }

}  // namespace headrace
