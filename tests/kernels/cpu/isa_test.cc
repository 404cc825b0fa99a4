#include "kernels/cpu/isa.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cache/base.h"
#include "kernels/elementwise/cpu_isa.h"
#include "tests/support/kernel_test.h"

namespace headrace::kernels {
namespace {

using testing_support::kAllTypes;

TEST(Isa, NamesGoBothWays) {
  for (Isa isa : kAllIsas) {
    Isa parsed;
    ASSERT_TRUE(parse_isa(isa_name(isa), &parsed)) << isa_name(isa);
    EXPECT_EQ(parsed, isa);
  }
  Isa untouched = Isa::kAvx2;
  EXPECT_FALSE(parse_isa("AVX2", &untouched));
  EXPECT_FALSE(parse_isa("", &untouched));
  EXPECT_EQ(untouched, Isa::kAvx2);
}

TEST(Isa, BaselineIsEverywhere) { EXPECT_TRUE(isa_supported(Isa::kBaseline)); }

// The choice is made once a process: each case in a process of its own.
void choose_and_exit(const char* value) {
  setenv("HEADRACE_ISA", value, 1);
  try {
    std::fprintf(stderr, "chose %s\n", isa_name(isa()));
    std::exit(0);
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::exit(static_cast<int>(error.code()));
  }
}

TEST(IsaDeathTest, EnvironmentChooses) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(choose_and_exit("baseline"), testing::ExitedWithCode(0), "chose baseline");
  EXPECT_EXIT(choose_and_exit("avx3"), testing::ExitedWithCode(2), "HEADRACE_ISA: 'avx3' is no instruction set");
}

// ---- The vector functions of simd.h, through the table ------------------------------------------------------------

class SimdTest : public testing::TestWithParam<testing_support::KernelTarget> {
 protected:
  void SetUp() override { set_isa(GetParam().isa); }
  void TearDown() override { set_isa(before_); }
  const Isa before_ = isa();
};
INSTANTIATE_KERNEL_TEST(SimdTest);

// The error in units in the last place of the right answer.
double ulps(float actual, double expected) {
  int exponent;
  std::frexp(expected, &exponent);
  return std::fabs(actual - expected) / std::ldexp(1.0, std::max(exponent - 24, -149));
}

TEST_P(SimdTest, ExpIsWithinTwoUlps) {
  std::vector<float> in;
  for (float x = -103.9f; x < 88.72f; x += 0.00091f) in.push_back(x);
  std::vector<float> out(in.size());
  HEADRACE_PICK_ISA(elementwise_kernels).exp(in.data(), out.data(), static_cast<int64_t>(in.size()));
  double worst = 0;
  float where = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double error = ulps(out[i], std::exp(static_cast<double>(in[i])));
    if (!(error <= worst)) worst = error, where = in[i];
  }
  EXPECT_LE(worst, 2.0) << "at " << where;
}

TEST_P(SimdTest, ExpAtTheEnds) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> in = {0.0f, -0.0f, inf, -inf, nan, -1e30f, 1e30f, 88.8f, -104.5f};
  std::vector<float> out(in.size());
  HEADRACE_PICK_ISA(elementwise_kernels).exp(in.data(), out.data(), static_cast<int64_t>(in.size()));
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], 1.0f);
  EXPECT_EQ(out[2], inf);
  EXPECT_EQ(out[3], 0.0f);
  EXPECT_TRUE(std::isnan(out[4]));
  EXPECT_EQ(out[5], 0.0f);
  EXPECT_EQ(out[6], inf);
  EXPECT_EQ(out[7], inf);
  EXPECT_EQ(out[8], 0.0f);
}

// Every 16-bit pattern widened, and floats around every rounding border narrowed, as cache/base.h does it.
TEST_P(SimdTest, EveryHalfWidensAsTheBaseHeaderHasIt) {
  std::vector<uint16_t> patterns(65536);
  for (size_t i = 0; i < patterns.size(); ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(patterns.size());
  for (DType type : {DType::kF16, DType::kBF16}) {
    HEADRACE_PICK_ISA(elementwise_kernels).convert(type, DType::kF32, patterns.data(), wide.data(), 65536);
    for (size_t i = 0; i < patterns.size(); ++i) {
      const float expected = type == DType::kF16 ? f16_to_f32({patterns[i]}) : bf16_to_f32({patterns[i]});
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[i])) << dtype_name(type) << " " << i;
      } else {
        ASSERT_EQ(std::memcmp(&wide[i], &expected, 4), 0) << dtype_name(type) << " " << i << ": " << wide[i];
      }
    }
  }
}

TEST_P(SimdTest, FloatsNarrowAsTheBaseHeaderHasIt) {
  std::vector<float> in;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 0x0fff) {  // over all exponents, odd low bits
    const uint32_t pattern = static_cast<uint32_t>(bits);
    float value;
    std::memcpy(&value, &pattern, 4);
    in.push_back(value);
  }
  for (uint32_t high = 0; high < 0x8000; high += 3) {  // ties of bf16 and f16, and their neighbours
    for (uint32_t low : {0x7fffu, 0x8000u, 0x8001u, 0x1000u, 0x0fffu, 0x1001u}) {
      const uint32_t pattern = high << 16 | low;
      float value;
      std::memcpy(&value, &pattern, 4);
      in.push_back(value);
    }
  }
  std::vector<uint16_t> narrow(in.size());
  for (DType type : {DType::kF16, DType::kBF16}) {
    HEADRACE_PICK_ISA(elementwise_kernels)
        .convert(DType::kF32, type, in.data(), narrow.data(), static_cast<int64_t>(in.size()));
    for (size_t i = 0; i < in.size(); ++i) {
      const uint16_t expected = type == DType::kF16 ? f32_to_f16(in[i]).bits : f32_to_bf16(in[i]).bits;
      if (std::isnan(in[i])) {
        const float back = type == DType::kF16 ? f16_to_f32({narrow[i]}) : bf16_to_f32({narrow[i]});
        ASSERT_TRUE(std::isnan(back)) << dtype_name(type) << " of a NaN";
      } else {
        ASSERT_EQ(narrow[i], expected) << dtype_name(type) << " of " << in[i];
      }
    }
  }
}

TEST_P(SimdTest, ShortRunsTouchNothingBeyond) {
  for (DType type : kAllTypes) {
    for (int64_t count = 1; count <= 40; ++count) {
      const std::vector<float> in(static_cast<size_t>(count), 1.5f);  // exactly as long as is read: for ASan
      std::vector<std::byte> out(static_cast<size_t>(count + 4) * dtype_bytes(type), std::byte{0xa5});
      HEADRACE_PICK_ISA(elementwise_kernels).convert(DType::kF32, type, in.data(), out.data(), count);
      for (size_t i = static_cast<size_t>(count) * dtype_bytes(type); i < out.size(); ++i) {
        ASSERT_EQ(out[i], std::byte{0xa5}) << dtype_name(type) << " count=" << count;
      }
      const std::vector<float> decoded = testing_support::decode(out, type);
      for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(decoded[i], 1.5f) << dtype_name(type) << " count=" << count;
    }
  }
}

}  // namespace
}  // namespace headrace::kernels
