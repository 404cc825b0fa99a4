// Quantising: the bytes of Q8_0, and the error of the types whose scales are searched.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cache/base.h"
#include "kernels/cpu/isa.h"
#include "kernels/weights/blocks.h"
#include "tests/support/weight_search.h"

namespace headrace {
namespace {

constexpr WeightType kSearched[] = {WeightType::kQ4K, WeightType::kQ5K, WeightType::kQ6K};
constexpr WeightType kWritten[] = {WeightType::kQ8_0, WeightType::kQ4K, WeightType::kQ5K, WeightType::kQ6K};

std::vector<std::byte> quantised(WeightType type, const std::vector<float>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> blocks(weight_bytes(type, 1, count));
  quantise_blocks(type, values.data(), count / weight_type_info(type).block_elements, blocks.data());
  return blocks;
}
std::vector<float> read_back(WeightType type, const std::vector<std::byte>& blocks, size_t count) {
  std::vector<float> values(count);
  dequantise_blocks(type, blocks.data(), static_cast<int64_t>(count) / weight_type_info(type).block_elements,
                    DType::kF32, values.data());
  return values;
}

// Four blocks of bf16 values and what gguf 0.19.0 (PyPI) makes of them, by quants.quantize(x, Q8_0): normal weights,
// zeros, a scale of 1 with levels that end in one half, and weights so small that the scale is subnormal in f16.
constexpr uint16_t kGolden[] = {
    0x37ce, 0x3bc3, 0xbbb3, 0xbc91, 0xbc14, 0xbca2, 0x3a9d, 0x3cdb, 0xbc21, 0xbc4b, 0x3c20, 0x3be9, 0x3b0a,
    0xbc98, 0xba19, 0x3c63, 0xbcdc, 0xbc15, 0xbd1b, 0xbcd3, 0xbd16, 0xbb9a, 0xbccf, 0x3bb1, 0x3b4d, 0xbb75,
    0xbd4e, 0xbc30, 0xba7e, 0x3b14, 0xbcfa, 0xbc1c, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000,
    0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000,
    0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x0000, 0x42fe,
    0xc080, 0x4190, 0x41b8, 0xc1d4, 0xc180, 0x4150, 0xc220, 0xc110, 0xc000, 0x41c8, 0x4158, 0xc0d0, 0xc0f0,
    0xc0a0, 0x41f4, 0xc108, 0xc0c0, 0x40e0, 0xc020, 0xc080, 0xc1b0, 0x8000, 0xc110, 0x41bc, 0x4150, 0xbf00,
    0x4158, 0xc0e0, 0x41a8, 0x8000, 0x4138, 0xb5d3, 0x34e3, 0xb60a, 0xb626, 0xb4c7, 0xb593, 0x3457, 0x3637,
    0xb588, 0xb54c, 0x3486, 0x3521, 0xb467, 0xb486, 0x3566, 0x352a, 0xb5a9, 0xb3cf, 0x3339, 0xb5ac, 0x34aa,
    0xb58c, 0x359f, 0x347c, 0x33ea, 0xb541, 0xb41b, 0xb623, 0xb5b9, 0x34ed, 0xb62e, 0x358a};
constexpr uint8_t kGoldenBlocks[] = {
    125, 14,  0,   15, 242, 211, 233, 206, 3,   68,  231, 225, 25,  18,  5,   209, 255, 35,  188, 233, 160, 191, 164,
    244, 192, 14,  8,  247, 129, 229, 254, 6,   179, 232, 0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,
    0,   0,   0,   0,  0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,   0,
    60,  127, 252, 18, 23,  229, 240, 13,  216, 247, 254, 25,  14,  249, 248, 251, 31,  247, 250, 7,   253, 252, 234,
    0,   247, 24,  13, 255, 14,  249, 21,  0,   12,  0,   0,   183, 20,  160, 141, 239, 205, 9,   127, 209, 221, 12,
    28,  246, 244, 40, 29,  197, 252, 2,   196, 15,  207, 55,  11,  5,   223, 249, 143, 192, 21,  135, 48};

std::vector<float> drawn(uint32_t seed, size_t count, bool heavy_tails) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 0.02f);
  std::student_t_distribution<float> heavy(4);
  std::vector<float> values(count);
  for (float& value : values) value = heavy_tails ? 0.02f * heavy(random) : normal(random);
  return values;
}

// Superblocks of numbers that are the same wherever they are drawn: an ordinary one, one with groups whose range is too
// narrow for a scale and with zeros of both signs, one of such zeros alone, and one of tiny numbers alone.
std::vector<float> drawn_exactly() {
  std::mt19937 random(7);
  std::vector<float> values(1024);
  for (float& value : values) {
    int32_t sum = -2 * 65536;
    for (int i = 0; i < 4; ++i) sum += static_cast<int32_t>(random() >> 16);
    value = static_cast<float>(sum) * 0x1p-21f;
  }
  for (size_t i = 0; i < 32; ++i) {
    const float part = static_cast<float>(i) / 31, zero = i % 3 == 0 ? -0.0f : 0.0f;
    values[256 + 2 * 32 + i] = 1e-39f * part;
    values[256 + 3 * 32 + i] = -1e-39f * part;
    values[256 + 4 * 32 + i] = zero;
    values[256 + 5 * 32 + i] = 5e-38f * part;
    values[256 + 6 * 32 + i] = 5e-38f * (part - 0.5f);
    for (size_t group = 0; group < 8; ++group) {
      values[512 + group * 32 + i] = zero;
      values[768 + group * 32 + i] = (group % 2 == 0 ? 1e-39f : 5e-38f) * (part - 0.3f);
    }
  }
  return values;
}
// FNV-1a.
uint64_t hash_of(const std::vector<std::byte>& bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  return hash;
}

class QuantiseTest : public ::testing::TestWithParam<kernels::Isa> {
 protected:
  void SetUp() override { kernels::set_isa(GetParam()); }
  void TearDown() override { kernels::set_isa(before_); }
  const kernels::Isa before_ = kernels::isa();
};
std::vector<kernels::Isa> supported() {
  std::vector<kernels::Isa> isas;
  for (const kernels::Isa isa : kernels::kAllIsas) {
    if (kernels::isa_supported(isa)) isas.push_back(isa);
  }
  return isas;
}
INSTANTIATE_TEST_SUITE_P(Isas, QuantiseTest, ::testing::ValuesIn(supported()),
                         [](const auto& given) { return kernels::isa_name(given.param); });

TEST_P(QuantiseTest, Q8HasTheBytesOfTheReference) {
  std::vector<float> values;
  for (const uint16_t bits : kGolden) values.push_back(std::bit_cast<float>(uint32_t{bits} << 16));
  const std::vector<std::byte> blocks = quantised(WeightType::kQ8_0, values);
  ASSERT_EQ(blocks.size(), std::size(kGoldenBlocks));
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_EQ(static_cast<uint8_t>(blocks[i]), kGoldenBlocks[i]) << i;
}

TEST_P(QuantiseTest, EveryInstructionSetWritesTheSameBytes) {
  for (const std::vector<float>& values : {drawn(11, 1024, false), drawn(11, 1024, true), drawn_exactly()}) {
    for (const WeightType type : kWritten) {
      kernels::set_isa(kernels::Isa::kBaseline);
      const std::vector<std::byte> expected = quantised(type, values);
      kernels::set_isa(GetParam());
      EXPECT_TRUE(quantised(type, values) == expected) << weight_type_info(type).name;
    }
  }
}

// A hash that differs: the bytes have changed, and so have the logits of models that are quantised as they are loaded.
TEST_P(QuantiseTest, TheBytesAreWhatTheyWere) {
  struct Written {
    WeightType type;
    uint64_t hash;
  };
  for (const Written& written :
       {Written{WeightType::kQ8_0, 10298719633901923881u}, Written{WeightType::kQ4K, 9847574273582334017u},
        Written{WeightType::kQ5K, 5822228190720826065u}, Written{WeightType::kQ6K, 14743220326143623250u}}) {
    const std::vector<float> values = drawn_exactly();
    const std::vector<std::byte> blocks = quantised(written.type, values);
    EXPECT_EQ(hash_of(blocks), written.hash) << weight_type_info(written.type).name;
    for (const float value : read_back(written.type, blocks, values.size())) ASSERT_TRUE(std::isfinite(value));
  }
}

// Blocks of zeros, of one value, of one sign, with one large weight, of numbers that f16 cannot scale.
TEST_P(QuantiseTest, OddBlocksKeepTheirValues) {
  constexpr size_t kBlock = 256;
  std::vector<std::vector<float>> blocks(6, std::vector<float>(kBlock, 0.0f));
  blocks[1].assign(kBlock, -0.37f);
  blocks[2].assign(kBlock, 0.37f);
  for (size_t i = 0; i < kBlock; ++i) {
    blocks[3][i] = 1.0f + static_cast<float>(i % 32) / 64;
    blocks[4][i] = i == 77 ? 8.0f : 0.01f * static_cast<float>(static_cast<int>(i % 3) - 1);
    blocks[5][i] = 1e-12f * static_cast<float>(i);
  }
  constexpr float kSteps[] = {250, 30, 62, 62};  // largest / worst error: twice the levels of a group, less rounding
  for (size_t t = 0; t < std::size(kWritten); ++t) {
    const WeightType type = kWritten[t];
    for (size_t b = 0; b < blocks.size(); ++b) {
      const std::vector<float>& values = blocks[b];
      const std::vector<float> read = read_back(type, quantised(type, values), kBlock);
      float largest = 0, worst = 0;
      for (size_t i = 0; i < kBlock; ++i) {
        largest = std::max(largest, std::abs(values[i]));
        ASSERT_TRUE(std::isfinite(read[i])) << weight_type_info(type).name << " block " << b << " weight " << i;
        worst = std::max(worst, std::abs(read[i] - values[i]));
      }
      const float steps = b == 5 ? 1 : kSteps[t];
      EXPECT_LE(worst, largest / steps) << weight_type_info(type).name << " block " << b;
    }
  }
}

TEST_P(QuantiseTest, ABlockThatIsNotFiniteReadsAsNotFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY, 3e38f}) {  // the last is beyond every scale in f16
    for (const WeightType type : kWritten) {
      std::vector<float> values = drawn(5, 512, false);
      values[300] = bad;
      const std::vector<std::byte> blocks = quantised(type, values);
      const int64_t size = weight_type_info(type).block_elements, count = 512 / size;
      EXPECT_EQ(first_suspect_block(type, blocks.data(), count, DType::kBF16), 300 / size)
          << weight_type_info(type).name;
      EXPECT_FALSE(std::isfinite(read_back(type, blocks, 512)[300])) << weight_type_info(type).name << " " << bad;
      EXPECT_TRUE(std::isfinite(read_back(type, blocks, 512)[0])) << weight_type_info(type).name << " " << bad;
    }
  }
}

TEST(QuantiseError, IsCloseToThatOfASearchOverAllScales) {
  constexpr size_t kBlock = 256, kBlocks = 6;  // of two blocks the ratio may be 1.07
  for (const bool heavy : {false, true}) {
    const std::vector<float> values = drawn(3, kBlocks * kBlock, heavy);
    for (const WeightType type : kSearched) {
      const std::vector<float> read = read_back(type, quantised(type, values), values.size());
      double searched = 0;
      for (size_t i = 0; i < values.size(); i += kBlock) searched += testing_support::searched_error(type, &values[i]);
      const double error = testing_support::squared_error(values.data(), read.data(), static_cast<int>(values.size()));
      EXPECT_LE(error, 1.05 * searched) << weight_type_info(type).name << (heavy ? ", heavy tails" : ", normal");
      EXPECT_GT(error, 0.8 * searched) << weight_type_info(type).name;
    }
  }
}

}  // namespace
}  // namespace headrace
