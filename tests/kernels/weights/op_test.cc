#include "kernels/weights/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/weights/blocks.h"
#include "kernels/weights/grids.h"
#include "tests/support/kernel_test.h"
#include "tests/support/weight_blocks.h"

namespace headrace {
namespace {

using testing_support::decode;
using testing_support::DeviceArray;
using testing_support::encode;
using testing_support::kAllTypes;
using testing_support::kQuantisedTypes;
using testing_support::random_blocks;
using testing_support::random_values;
using testing_support::weights_of;

// The matrices are parts of 53 to 130 rows and of one to five blocks of 32 or 256 columns.
constexpr int64_t kRows[] = {1, 16, 53, 130};

class WeightsTest : public testing_support::KernelTest {
 protected:
  // A part of `rows` rows, brought to the backend's layout in runs of `run` rows.
  DeviceArray store(WeightType type, const std::vector<std::byte>& blocks, int64_t rows, int64_t cols, int64_t run);
  // Fails the test unless the rows in f32 have the same values.
  std::vector<std::byte> rows_of(const Weight& weight, const std::vector<int32_t>& ids, int64_t first, int64_t rows,
                                 DType type);
};
INSTANTIATE_KERNEL_TEST(WeightsTest);

DeviceArray WeightsTest::store(WeightType type, const std::vector<std::byte>& blocks, int64_t rows, int64_t cols,
                               int64_t run) {
  DeviceArray out = output(stored_weight_bytes(stream().backend(), type, rows, cols));
  for (int64_t row = 0; row < rows; row += run) {
    const int64_t end = std::min(rows, row + run);
    const DeviceArray some =
        upload(std::vector<std::byte>(blocks.begin() + static_cast<std::ptrdiff_t>(weight_bytes(type, row, cols)),
                                      blocks.begin() + static_cast<std::ptrdiff_t>(weight_bytes(type, end, cols))));
    store_weight({.blocks = some.data(),
                  .type = type,
                  .out = out.data(),
                  .rows = rows,
                  .cols = cols,
                  .row_begin = row,
                  .row_end = end},
                 stream());
    download(some);  // waits before it is freed
  }
  return out;
}

std::vector<std::byte> WeightsTest::rows_of(const Weight& weight, const std::vector<int32_t>& ids, int64_t first,
                                            int64_t rows, DType type) {
  const DeviceArray id_array = upload_raw(ids);
  const auto values = [&](DType out_type) {
    const DeviceArray out = output(static_cast<uint64_t>(rows * weight.cols) * dtype_bytes(out_type));
    dequantise({.weight = weight,
                .ids = ids.empty() ? nullptr : id_array.as<int32_t>(),
                .first_row = first,
                .rows = rows,
                .type = type,
                .out_type = out_type,
                .out = out.data()},
               stream());
    return download(out);
  };
  const std::vector<std::byte> out = values(type);
  EXPECT_TRUE(values(DType::kF32) == encode(decode(out, type), DType::kF32)) << dtype_name(type) << " in f32";
  return out;
}

std::vector<std::byte> slice(const std::vector<std::byte>& all, int64_t first, int64_t rows, int64_t cols, DType type) {
  const auto row = static_cast<std::ptrdiff_t>(static_cast<uint64_t>(cols) * dtype_bytes(type));
  return {all.begin() + first * row, all.begin() + (first + rows) * row};
}

TEST_P(WeightsTest, EveryTypeIsItsFormulaRoundedOnce) {
  for (const WeightType type : kQuantisedTypes) {
    const WeightTypeInfo& info = weight_type_info(type);
    int64_t number = 0;
    for (const int64_t rows : kRows) {
      const int64_t cols = info.block_elements * (1 + number % 5);
      const std::vector<std::byte> blocks = random_blocks(type, static_cast<uint64_t>(++number), rows, cols);
      const std::vector<float> values = weights_of(type, blocks);
      for (const int64_t run : {rows, kStoreRows}) {
        const DeviceArray stored = store(type, blocks, rows, cols, run);
        const Weight weight = {.parts = {{stored.data(), type, rows}, {}, {}}, .count = 1, .cols = cols};
        for (const DType to : kAllTypes) {
          const std::vector<std::byte> expected = encode(values, to);
          const std::string what = str(info.name, " as ", dtype_name(to), ", ", rows, " x ", cols, ", runs of ", run);
          EXPECT_TRUE(rows_of(weight, {}, 0, rows, to) == expected) << what;
          const int64_t half = rows / 2;
          EXPECT_TRUE(rows_of(weight, {}, half, rows - half, to) == slice(expected, half, rows - half, cols, to))
              << what;
        }
      }
    }
  }
}

// The rows of three parts, one of them plain, by number and by runs that begin and end anywhere.
TEST_P(WeightsTest, PartsAreOneMatrix) {
  constexpr int64_t kCols = 512, kFirst = 37, kSecond = 16, kThird = 21, kAll = kFirst + kSecond + kThird;
  for (const DType to : kAllTypes) {
    const std::vector<std::byte> a = random_blocks(WeightType::kQ4K, 1, kFirst, kCols);
    const std::vector<std::byte> c = random_blocks(WeightType::kQ6K, 2, kThird, kCols);
    const std::vector<float> b = random_values(3, kSecond * kCols);
    const DeviceArray stored_a = store(WeightType::kQ4K, a, kFirst, kCols, kFirst), stored_b = upload(b, to),
                      stored_c = store(WeightType::kQ6K, c, kThird, kCols, kThird);
    const Weight weight = {.parts = {{stored_a.data(), WeightType::kQ4K, kFirst},
                                     {stored_b.data(), plain_weight_type(to), kSecond},
                                     {stored_c.data(), WeightType::kQ6K, kThird}},
                           .count = 3,
                           .cols = kCols};
    EXPECT_EQ(weight.rows(), kAll);
    std::vector<float> values = weights_of(WeightType::kQ4K, a);
    values.insert(values.end(), b.begin(), b.end());
    const std::vector<float> last = weights_of(WeightType::kQ6K, c);
    values.insert(values.end(), last.begin(), last.end());
    const std::vector<std::byte> expected = encode(values, to);
    for (const auto& [first, rows] : {std::pair<int64_t, int64_t>{0, kAll}, {30, 20}, {52, 3}, {kAll - 1, 1}, {9, 0}}) {
      EXPECT_TRUE(rows_of(weight, {}, first, rows, to) == slice(expected, first, rows, kCols, to))
          << first << " " << rows;
    }
    const std::vector<int32_t> ids = {0, 73, 36, 37, 52, 53, 53, 5};
    std::vector<std::byte> gathered;
    for (const int32_t id : ids) {
      const std::vector<std::byte> row = slice(expected, id, 1, kCols, to);
      gathered.insert(gathered.end(), row.begin(), row.end());
    }
    EXPECT_TRUE(rows_of(weight, ids, 0, static_cast<int64_t>(ids.size()), to) == gathered) << dtype_name(to);
  }
}

TEST_P(WeightsTest, StoredBytesAreCloseToTheFiles) {
  for (const WeightType type : kQuantisedTypes) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1024, 4096}, {4096, 14336}, {128256, 4096}}) {
      const auto file = static_cast<double>(weight_bytes(type, rows, cols));
      const double most = type == WeightType::kQ3K ? 1.04 : is_grid(type) ? 1.13 : 1.03;
      EXPECT_LE(static_cast<double>(stored_weight_bytes(stream().backend(), type, rows, cols)), most * file)
          << weight_type_info(type).name;
    }
  }
}

TEST(WeightTypes, HaveNamesAndSizes) {
  for (const char* name :
       {"F32",  "F16",  "BF16",   "Q4_0",   "Q4_1",    "Q5_0",   "Q5_1",  "Q8_0",    "Q4_K",  "Q5_K", "Q6_K",
        "Q2_K", "Q3_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "MXFP4"}) {
    ASSERT_NE(find_weight_type(name), nullptr) << name;
    EXPECT_STREQ(find_weight_type(name)->name, name);
  }
  EXPECT_EQ(find_weight_type("IQ1_S"), nullptr);
  EXPECT_EQ(weight_bytes(WeightType::kQ4K, 3, 512), 3 * 2 * 144u);
  EXPECT_EQ(weight_bytes(WeightType::kBF16, 3, 5), 30u);
  EXPECT_DEATH(weight_bytes(WeightType::kQ8_0, 1, 40), "cols=40 type=Q8_0");
}

// A scale that makes a value infinite or NaN is found in whatever block it is, and nothing else is suspect.
TEST(WeightBlocks, SuspectBlocksAreFound) {
  constexpr int64_t kBlocks = 9;
  for (const WeightType type : kQuantisedTypes) {
    const WeightTypeInfo& info = weight_type_info(type);
    const std::vector<std::byte> good = random_blocks(type, 7, kBlocks, info.block_elements);
    for (const DType to : kAllTypes) {
      EXPECT_EQ(first_suspect_block(type, good.data(), kBlocks, to), kBlocks) << info.name;
      for (const uint16_t bits : {0x7c00, 0xfc00, 0x7e01, 0x7bff}) {  // infinities, a NaN, 65,504
        for (const size_t place : testing_support::scale_places(type)) {
          std::vector<std::byte> bad = good;
          const size_t block = 5;
          std::memcpy(&bad[block * static_cast<size_t>(info.block_bytes) + place], &bits, 2);
          const bool finite = bits == 0x7bff && to != DType::kF16;
          const int64_t found = first_suspect_block(type, bad.data(), kBlocks, to);
          EXPECT_EQ(found, finite ? kBlocks : 5) << info.name << " as " << dtype_name(to) << " bits " << bits;
        }
      }
    }
  }
}

// Its scale is not an f16 number: the powers of two at either end, of which the least are subnormal.
TEST_P(WeightsTest, EveryExponentOfMxfp4) {
  constexpr int64_t kRows = 256;
  std::vector<std::byte> blocks = random_blocks(WeightType::kMXFP4, 3, kRows, 32);
  for (size_t row = 0; row < kRows; ++row) blocks[row * 17] = static_cast<std::byte>(row);
  const DeviceArray stored = store(WeightType::kMXFP4, blocks, kRows, 32, kRows);
  const Weight weight = {.parts = {{stored.data(), WeightType::kMXFP4, kRows}, {}, {}}, .count = 1, .cols = 32};
  EXPECT_TRUE(rows_of(weight, {}, 0, kRows, DType::kF32) ==
              encode(weights_of(WeightType::kMXFP4, blocks), DType::kF32));
}

TEST(WeightBlocks, LargeExponentsOfMxfp4AreFound) {
  std::vector<std::byte> blocks = random_blocks(WeightType::kMXFP4, 7, 9, 32);
  for (const auto& [byte, in_f16, in_f32] :
       {std::tuple<int, int64_t, int64_t>{140, 9, 9}, {141, 5, 9}, {252, 5, 9}, {253, 5, 5}, {255, 5, 5}}) {
    blocks[size_t{5} * 17] = static_cast<std::byte>(byte);
    EXPECT_EQ(first_suspect_block(WeightType::kMXFP4, blocks.data(), 9, DType::kF16), in_f16) << byte;
    EXPECT_EQ(first_suspect_block(WeightType::kMXFP4, blocks.data(), 9, DType::kF32), in_f32) << byte;
    EXPECT_EQ(first_suspect_block(WeightType::kMXFP4, blocks.data(), 9, DType::kBF16), in_f32) << byte;
  }
}

}  // namespace
}  // namespace headrace
