#include "offload/checksum.h"

#include <xxhash.h>

namespace headrace {

uint64_t checksum(std::span<const std::byte> data) { return XXH3_64bits(data.data(), data.size()); }

}  // namespace headrace
