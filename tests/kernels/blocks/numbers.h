// What the tests of blocks share. Constants and a cast; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

namespace headrace::testing_support {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

inline size_t index(int64_t value) { return static_cast<size_t>(value); }

}  // namespace headrace::testing_support
