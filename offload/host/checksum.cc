#include "offload/host/checksum.h"

// The library as Debian has it for x86-64 holds a body for each instruction set and takes the best one at run time.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace headrace {

uint64_t checksum(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

}  // namespace headrace
