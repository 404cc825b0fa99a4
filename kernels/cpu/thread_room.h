// Memory of the calling thread for the CPU bodies, so that a call allocates nothing. Any thread.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::kernels {

// At least `bytes`, 64-byte aligned; the thread keeps it, and the next call may move it. The planner counts the largest
// room of each op for every thread. Throws std::bad_alloc.
std::byte* room_of_thread(uint64_t bytes);

}  // namespace headrace::kernels
