// Numbers of 8 bits as safetensors' F8_E4M3 has them: a sign, 4 bits of exponent with bias 7, 3 bits of fraction; no
// infinity, and NaN where all bits but the sign are set. Pure; any thread.
#pragma once

#include <array>
#include <cstdint>
#include <limits>

namespace headrace {

constexpr float e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  float value = static_cast<float>(exponent == 0 ? fraction : 8 + fraction) / 512;  // with the smallest exponent, -6
  for (int i = 1; i < exponent; ++i) value *= 2;
  if ((bits & 0x7f) == 0x7f) value = std::numeric_limits<float>::quiet_NaN();
  return bits & 0x80 ? -value : value;
}

struct E4m3Table {
  std::array<float, 256> values{};
  constexpr E4m3Table() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = e4m3_value(static_cast<uint8_t>(i));
  }
};
inline constexpr E4m3Table kE4m3;

}  // namespace headrace
