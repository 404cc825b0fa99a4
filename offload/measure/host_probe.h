// Measures the host's memory bandwidth with all threads of a process: reading, writing and copying far more than the
// caches hold. Owns its buffers while it measures. Thread: one; starts others.
#pragma once

#include <cstdint>

namespace headrace {

// GB/s, each the median of the rounds. A copied byte counts once, though it is read and written.
struct HostMemorySpeed {
  double read = 0, write = 0, copy = 0;
  double one_thread_copy = 0;
};
// Allocates two buffers of `bytes`. Throws Error(kDoesNotFit) if the system has not enough.
HostMemorySpeed measure_host_memory(int threads, uint64_t bytes, int rounds = 5);

}  // namespace headrace
