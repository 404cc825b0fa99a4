// What the host's memory gives to all threads of a process: reading, writing and copying much more than its caches
// hold. Owns its buffers while it measures. Thread: one; makes others.
#pragma once

#include <cstdint>

namespace headrace {

// GB/s, each the median of the rounds; a copy's bytes are counted once, though they are read and written.
struct HostMemorySpeed {
  double read = 0, write = 0, copy = 0;
  double one_thread_copy = 0;
};
// Two buffers of `bytes`. Throws Error(kDoesNotFit) where the system has not as much.
HostMemorySpeed measure_host_memory(int threads, uint64_t bytes, int rounds = 5);

}  // namespace headrace
