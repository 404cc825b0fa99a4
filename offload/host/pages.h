// Whole pages of host memory, straight from the system: zero, on a huge page's border where they fill one, and gone
// from the resident set as soon as they are given back. Any thread.
#pragma once

#include <cstdint>

namespace headrace {

// `bytes`: a multiple of kPageBytes, not 0. Null, with errno, when the system refuses. Resident once touched.
void* map_pages(uint64_t bytes) noexcept;
void unmap_pages(void* data, uint64_t bytes) noexcept;

// Makes all pages resident now, on several threads: the system zeroes them, which takes one thread a second for a few
// GiB.
void touch_pages(void* data, uint64_t bytes, int threads);

}  // namespace headrace
