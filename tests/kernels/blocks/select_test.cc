// The choice of blocks by their scores, against a stable sort.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/blocks/op.h"
#include "tests/kernels/blocks/numbers.h"
#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::index;
using testing_support::KernelTest;
using testing_support::kInfinity;
using testing_support::kNan;
using testing_support::random_values;

class SelectionTest : public KernelTest {
 protected:
  void check(const std::vector<float>& scores, int64_t kv_heads, int64_t keep, int64_t first_block) {
    const int64_t count = static_cast<int64_t>(scores.size()) / kv_heads;
    SCOPED_TRACE(str("count=", count, " keep=", keep));
    const DeviceArray given = upload(scores, DType::kF32);
    const DeviceArray chosen = output(index(kv_heads * keep) * sizeof(int32_t));
    select_blocks({given.as<float>(), chosen.as<int32_t>(), kv_heads, count, keep, first_block}, stream());
    std::vector<int32_t> expected;
    for (int64_t head = 0; head < kv_heads; ++head) {
      std::vector<int32_t> order(index(count));
      std::iota(order.begin(), order.end(), 0);
      const auto value = [&](int32_t block) {
        const float score = scores[index(head * count + block)];
        return std::isnan(score) ? -kInfinity : score;
      };
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
      order.resize(index(keep));
      std::sort(order.begin(), order.end());
      for (int32_t block : order) expected.push_back(block + static_cast<int32_t>(first_block));
    }
    const std::vector<std::byte> bytes = download(chosen);
    std::vector<int32_t> actual(expected.size());
    std::memcpy(actual.data(), bytes.data(), bytes.size());
    EXPECT_EQ(actual, expected);
  }
};

TEST_P(SelectionTest, TakesTheBestAscending) {
  for (int64_t count : {1, 2, 31, 32, 33, 257, 1023, 1024, 1025, 3820, 4096, 4097, 8192, 8193, 16384, 20000}) {
    for (int64_t keep : {int64_t{1}, std::min(count / 3, kMaxKeptBlocks), std::min<int64_t>(count, 256),
                         std::min(count - 1, kMaxKeptBlocks)}) {
      if (keep > 0) check(random_values(31, 3 * count), 3, keep, 2);
    }
  }
}

TEST_P(SelectionTest, TakesAllWhereAllAreKept) {
  for (int64_t count : {1, 7, 32, 100, 1024}) check(random_values(32, 2 * count), 2, count, 5);
}

TEST_P(SelectionTest, FromAMillionTokens) {
  check(random_values(33, 2 * kMaxBlocks), 2, kMaxKeptBlocks, 0);
  check(random_values(33, 2 * (kMaxBlocks - 1)), 2, 256, 8);
}

TEST_P(SelectionTest, GivesTiesToTheLowerBlock) {
  std::mt19937_64 random(34);
  for (int64_t count : {5, 100, 1500, 9000, 40000}) {
    for (int kinds : {1, 2, 5}) {
      std::vector<float> scores(index(2 * count));
      for (float& score : scores) score = static_cast<float>(static_cast<int>(random() % index(kinds)) - 2);
      for (int64_t keep : {int64_t{1}, int64_t{4}, std::min<int64_t>(count, 700)}) check(scores, 2, keep, 1);
    }
  }
}

TEST_P(SelectionTest, TakesANanForTheLeast) {
  std::mt19937_64 random(35);
  const float odd[] = {kNan,   -kNan,  -kInfinity, kInfinity, 0.0f, -0.0f, -std::numeric_limits<float>::max(),
                       1e-45f, -1e-45f};
  for (int64_t count : {9, 300, 2500}) {
    std::vector<float> scores(index(3 * count));
    for (float& score : scores) score = odd[random() % std::size(odd)];
    for (int64_t keep : {int64_t{1}, std::min(count / 2, kMaxKeptBlocks), std::min(count, kMaxKeptBlocks)}) {
      check(scores, 3, keep, 0);
    }
    check(std::vector<float>(index(count), kNan), 1, 3, 0);
  }
}

INSTANTIATE_KERNEL_TEST(SelectionTest);

}  // namespace
}  // namespace headrace
