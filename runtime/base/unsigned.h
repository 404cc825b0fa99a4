// A count or a size, which is never negative, as the type of bytes. Pure; any thread.
#pragma once

#include <cstdint>

namespace headrace {

constexpr uint64_t u(int64_t value) { return static_cast<uint64_t>(value); }

}  // namespace headrace
