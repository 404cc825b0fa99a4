// Whole pages of host memory from the system: zeroed, aligned to a huge page if large enough, and removed from the
// resident set when freed. Any thread.
#pragma once

#include <cstdint>

namespace headrace {

// `bytes`: a multiple of kPageBytes, not 0. Returns null and sets errno on failure. Pages become resident when touched.
void* map_pages(uint64_t bytes) noexcept;
void unmap_pages(void* data, uint64_t bytes) noexcept;

// Makes all pages resident now, on several threads: the system zeroes them, at a few GiB per second and thread.
void touch_pages(void* data, uint64_t bytes, int threads);

}  // namespace headrace
