#include "runtime/model/convert.h"

#include <bit>
#include <cstring>

namespace headrace {
namespace {

// Branch-free twins of the scalar conversions of the base header, so that the compiler can vectorise them.
inline float load_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
  // 2^112 moves the exponent's bias from 15 to 127 and makes subnormals right; infinity and NaN need their exponent
  // back.
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(scaled) | special | sign);
}
inline float load_bf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }
inline uint16_t store_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1)) >> 16, nan = (bits >> 16) | 0x40;
  return static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

inline uint16_t store_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffffu, sign = (bits >> 16) & 0x8000u;
  const uint32_t normal = (magnitude + 0xfffu + ((magnitude >> 13) & 1) - 0x38000000u) >> 13;
  // Beside one half, the last place is 2^-24, that of f16's subnormals: the sum rounds there.
  const uint32_t subnormal = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t finite = magnitude < 0x38800000u ? subnormal : normal;
  const uint32_t bounded = magnitude >= 0x477ff000u ? 0x7c00u : finite;
  return static_cast<uint16_t>(sign | (magnitude > 0x7f800000u ? 0x7e00u : bounded));
}

template <typename From, typename Load>
void convert_from(const char* source, DType to, void* out, int64_t count, Load load) {
  const auto at = [&](int64_t i) {
    From value;
    std::memcpy(&value, source + static_cast<size_t>(i) * sizeof(From), sizeof value);
    return load(value);
  };
  if (to == DType::kF32) {
    float* const f32 = static_cast<float*>(out);
    for (int64_t i = 0; i < count; ++i) f32[i] = at(i);
  } else if (to == DType::kBF16) {
    bf16* const b16 = static_cast<bf16*>(out);
    for (int64_t i = 0; i < count; ++i) b16[i].bits = store_bf16(at(i));
  } else {
    f16* const h16 = static_cast<f16*>(out);
    for (int64_t i = 0; i < count; ++i) h16[i].bits = store_f16(at(i));
  }
}

}  // namespace

void convert_elements(DType from, const char* source, DType to, void* out, int64_t count) {
  if (from == to) {
    std::memcpy(out, source, static_cast<size_t>(count) * dtype_bytes(from));
    return;
  }
  switch (from) {
    case DType::kF32:
      return convert_from<float>(source, to, out, count, [](float value) { return value; });
    case DType::kF16:
      return convert_from<uint16_t>(source, to, out, count, load_f16);
    case DType::kBF16:
      return convert_from<uint16_t>(source, to, out, count, load_bf16);
  }
}

}  // namespace headrace
