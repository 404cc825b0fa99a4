// The checksum of data on a disk: XXH3, 64 bits, the same on every machine. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

uint64_t checksum(std::span<const std::byte> data);

}  // namespace headrace
