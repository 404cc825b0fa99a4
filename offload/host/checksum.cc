#include "offload/host/checksum.h"

// Debian's library for x86-64 has a body for each instruction set and selects one at run time.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace headrace {

uint64_t checksum(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

}  // namespace headrace
