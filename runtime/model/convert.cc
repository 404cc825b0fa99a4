#include "runtime/model/convert.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

namespace headrace {
namespace {

// Branch-free twins of the scalar conversions of the base header, so that the compiler can vectorise them.
inline float load_f16(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16, magnitude = bits & 0x7fffu;
  // Multiplying by 2^112 changes the exponent's bias from 15 to 127 and normalises subnormals; infinity and NaN get
  // their exponent back.
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
  // The last place of a sum with one half is 2^-24, as that of f16's subnormals, so the addition rounds there.
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

// NaN and infinity have all exponent bits set.
template <typename Bits>
int64_t first_with(Bits exponent, const void* values, int64_t count) {
  constexpr int64_t kRun = 4096;  // checked without a branch, so that the compiler can vectorise the loop
  const Bits* const bits = static_cast<const Bits*>(values);
  for (int64_t begin = 0; begin < count; begin += kRun) {
    const int64_t end = std::min(count, begin + kRun);
    Bits any = 0;
    for (int64_t i = begin; i < end; ++i) any |= static_cast<Bits>((bits[i] & exponent) == exponent ? 1 : 0);
    if (any == 0) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((bits[i] & exponent) == exponent) return i;
    }
  }
  return count;
}

}  // namespace

int64_t first_not_finite(DType type, const void* values, int64_t count) {
  switch (type) {
    case DType::kF32:
      return first_with<uint32_t>(0x7f800000u, values, count);
    case DType::kF16:
      return first_with<uint16_t>(0x7c00u, values, count);
    case DType::kBF16:
      return first_with<uint16_t>(0x7f80u, values, count);
    default:
      break;
  }
  return count;
}

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
    default:
      break;
  }
}

void read_converted(DType from, const ByteRange& range, DType to, void* out) {
  if (from == to) return range.source->read(range.begin, out, range.bytes);
  const uint64_t size = dtype_bytes(from);
  std::vector<char> buffer(std::min(kReadBytes, range.bytes));
  for (uint64_t done = 0; done < range.bytes; done += buffer.size()) {
    const uint64_t bytes = std::min<uint64_t>(buffer.size(), range.bytes - done);
    range.source->read(range.begin + done, buffer.data(), bytes);
    convert_elements(from, buffer.data(), to, static_cast<char*>(out) + done / size * dtype_bytes(to),
                     static_cast<int64_t>(bytes / size));
  }
}

}  // namespace headrace
