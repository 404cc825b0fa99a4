// The bulk conversions round as the scalar ones of the base header: every half, and floats from all over the range.
#include "runtime/model/convert.h"

#include <gtest/gtest.h>

#include <bit>
#include <limits>
#include <vector>

namespace headrace {
namespace {

TEST(Convert, EveryHalf) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> f16s(halves.size()), bf16s(halves.size());
  const char* const source = reinterpret_cast<const char*>(halves.data());
  convert_elements(DType::kF16, source, DType::kF32, f16s.data(), 65536);
  convert_elements(DType::kBF16, source, DType::kF32, bf16s.data(), 65536);
  for (size_t i = 0; i < halves.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(f16s[i]), std::bit_cast<uint32_t>(f16_to_f32({halves[i]}))) << i;
    ASSERT_EQ(std::bit_cast<uint32_t>(bf16s[i]), std::bit_cast<uint32_t>(bf16_to_f32({halves[i]}))) << i;
  }
}

TEST(Convert, FloatsOfEveryKind) {
  std::vector<float> values;
  for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 4001)
    values.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  for (const uint32_t edge : {0x477fefffu, 0x477ff000u, 0x38800000u, 0x387fffffu, 0x33000000u, 0x33000001u, 0x7f800000u,
                              0xff800000u, 0x7f800001u, 0xffffffffu, 0x80000000u, 0x3f808000u, 0x3f818000u})
    values.push_back(std::bit_cast<float>(edge));
  std::vector<uint16_t> f16s(values.size()), bf16s(values.size());
  const char* const source = reinterpret_cast<const char*>(values.data());
  const int64_t count = static_cast<int64_t>(values.size());
  convert_elements(DType::kF32, source, DType::kF16, f16s.data(), count);
  convert_elements(DType::kF32, source, DType::kBF16, bf16s.data(), count);
  for (size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(f16s[i], f32_to_f16(values[i]).bits) << std::hexfloat << values[i];
    ASSERT_EQ(bf16s[i], f32_to_bf16(values[i]).bits) << std::hexfloat << values[i];
  }
}

TEST(Convert, FindsTheFirstValueThatIsNotFinite) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  EXPECT_EQ(first_not_finite(DType::kF16, halves.data(), 65536), 0x7c00);
  EXPECT_EQ(first_not_finite(DType::kBF16, halves.data(), 65536), 0x7f80);
  EXPECT_EQ(first_not_finite(DType::kF16, halves.data(), 0x7c00), 0x7c00);  // none
  EXPECT_EQ(first_not_finite(DType::kF16, halves.data() + 0x8000, 0x8000), 0x7c00);
  const float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, -infinity, nan, -nan}) {
    for (const int64_t place : {0, 1, 4095, 4096, 9998, 9999}) {
      std::vector<float> values(10000, 3.4e38f);
      values[static_cast<size_t>(place)] = values.back() = bad;
      EXPECT_EQ(first_not_finite(DType::kF32, values.data(), 10000), place);
      EXPECT_EQ(first_not_finite(DType::kF32, values.data(), place), place);
    }
  }
}

}  // namespace
}  // namespace headrace
