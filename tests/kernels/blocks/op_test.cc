// Block summaries and scores against plain loops in double; what the op rejects. select_test.cc has the choice,
// moves_test.cc the moves.
#include "kernels/blocks/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/kernels/blocks/numbers.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::decode;
using testing_support::DeviceArray;
using testing_support::encode;
using testing_support::index;
using testing_support::kAllTypes;
using testing_support::KernelTest;
using testing_support::kInfinity;
using testing_support::kNan;
using testing_support::random_values;
using testing_support::rounded;

int64_t bytes_of(int64_t elements, DType type) { return elements * static_cast<int64_t>(dtype_bytes(type)); }

class BlocksTest : public KernelTest {
 protected:
  DeviceArray output_of(int64_t elements, DType type) {
    return output(static_cast<uint64_t>(bytes_of(elements, type)));
  }
};

// ---- Summaries ------------------------------------------------------------------------------------------------------

struct SummaryCase {
  int64_t layers, kv_heads, head_dim, ring_rows, blocks, first_block, count;
  int64_t layer_gap = 0;  // elements between one layer's ring and the next
};

class SummariesTest : public BlocksTest {
 protected:
  void check(const SummaryCase& c, DType type) {
    SCOPED_TRACE(str(dtype_name(type), " head_dim=", c.head_dim, " ring_rows=", c.ring_rows, " first=", c.first_block));
    const int64_t ring = c.kv_heads * c.ring_rows * c.head_dim, stride = ring + c.layer_gap;
    const std::vector<float> keys = rounded(random_values(7, c.layers * stride), type);
    const DeviceArray k = upload(keys, type);
    const int64_t elements = c.layers * c.kv_heads * c.blocks * 2 * c.head_dim;
    const DeviceArray summaries = output_of(elements, type);
    summarise_blocks({k.data(), summaries.data(), type, c.layers, c.kv_heads, c.head_dim, c.ring_rows, c.blocks, stride,
                      c.first_block, c.count},
                     stream());
    std::vector<float> expected(index(elements), kNan);  // what stays as it was
    for (int64_t head = 0; head < c.layers * c.kv_heads; ++head) {
      const int64_t base = head / c.kv_heads * stride + head % c.kv_heads * c.ring_rows * c.head_dim;
      for (int64_t block = c.first_block; block < c.first_block + c.count; ++block) {
        for (int64_t i = 0; i < c.head_dim; ++i) {
          float most = -kInfinity, least = kInfinity;
          for (int64_t p = block * kBlockRows; p < (block + 1) * kBlockRows; ++p) {
            const float key = keys[index(base + p % c.ring_rows * c.head_dim + i)];
            most = std::max(most, key);
            least = std::min(least, key);
          }
          const int64_t at = (head * c.blocks + block) * 2 * c.head_dim + i;
          expected[index(at)] = most;
          expected[index(at + c.head_dim)] = least;
        }
      }
    }
    EXPECT_EQ(download(summaries), encode_with_holes(expected, type));
  }

  static std::vector<std::byte> encode_with_holes(const std::vector<float>& values, DType type) {
    std::vector<std::byte> bytes = encode(values, type);
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isnan(values[i])) std::memset(&bytes[i * dtype_bytes(type)], 0xff, dtype_bytes(type));
    }
    return bytes;
  }
};

TEST_P(SummariesTest, AreTheLargestAndTheLeastOfEachElement) {
  for (DType type : kAllTypes) {
    for (int64_t head_dim : {2, 6, 64, 80, 96, 100, 128, 256, 512}) check({1, 2, head_dim, 160, 10, 0, 10}, type);
  }
}

TEST_P(SummariesTest, OfSomeBlocksLeaveTheOthers) {
  for (DType type : kAllTypes) {
    check({1, 3, 64, 128, 8, 2, 5}, type);
    check({1, 1, 64, 128, 8, 7, 1}, type);
    check({1, 1, 64, 128, 8, 8, 0}, type);
  }
}

TEST_P(SummariesTest, FollowARingAroundItsEnd) {
  for (DType type : kAllTypes) {
    check({1, 2, 64, 48, 9, 5, 3}, type);  // blocks 5, 6, 7 of a ring of three
    check({1, 2, 64, 40, 9, 2, 2}, type);  // block 2 lies at both ends
    check({1, 2, 64, 16, 40, 39, 1}, type);
    check({1, 2, 64, 128, 64, 8, 8}, type);  // a segment of 128 rows that begins at row 128
  }
}

TEST_P(SummariesTest, OfManyLayersAtOnce) {
  check({5, 2, 128, 64, 6, 3, 2}, DType::kBF16);
  check({5, 2, 128, 64, 6, 3, 2, 8}, DType::kF16);
  check({3, 2, 96, 64, 6, 3, 2, 2}, DType::kF32);  // layers that are no longer aligned to 16 bytes
  check({testing::kSanitized ? 2 : 32, 8, 64, 640, 40, 0, 40}, DType::kBF16);
}

TEST_P(SummariesTest, OfKeysThatAreNotAligned) {
  const std::vector<float> keys = rounded(random_values(3, 2 * 32 * 64 + 1), DType::kBF16);
  const DeviceArray k = upload(keys, DType::kBF16), plain = upload({keys.begin() + 1, keys.end()}, DType::kBF16);
  const DeviceArray a = output_of(2 * 2 * 2 * 64, DType::kBF16), b = output_of(2 * 2 * 2 * 64, DType::kBF16);
  SummariseBlocksParams params{k.data() + 2, a.data(), DType::kBF16, 1, 2, 64, 32, 2, 0, 0, 2};
  summarise_blocks(params, stream());
  params.k = plain.data();
  params.summaries = b.data();
  summarise_blocks(params, stream());
  EXPECT_EQ(download(a), download(b));
}

INSTANTIATE_KERNEL_TEST(SummariesTest);

// ---- Scores ---------------------------------------------------------------------------------------------------------

struct ScoreCase {
  int64_t queries, group, kv_heads, head_dim, blocks, first_block, count;
  DType type = DType::kF32, k_type = DType::kF32;
  int64_t q_gap = 0;  // elements between queries
};

class ScoresTest : public BlocksTest {
 protected:
  void TearDown() override {  // before the device
    q_array_ = {};
    summaries_array_ = {};
    BlocksTest::TearDown();
  }

  void make(const ScoreCase& c) {
    case_ = c;
    const int64_t heads = c.group * c.kv_heads, stride = heads * c.head_dim + c.q_gap;
    queries_ = rounded(random_values(11, c.queries * stride), c.type);
    const int64_t elements = c.kv_heads * c.blocks * 2 * c.head_dim;
    summaries_ = random_values(12, elements);
    for (int64_t row = 0; row < c.kv_heads * c.blocks; ++row) {  // the largest is never below the least
      for (int64_t i = 0; i < c.head_dim; ++i) {
        float &most = summaries_[index(row * 2 * c.head_dim + i)],
              &least = summaries_[index((row * 2 + 1) * c.head_dim + i)];
        if (most < least) std::swap(most, least);
      }
    }
    summaries_ = rounded(summaries_, c.k_type);
    q_array_ = upload(queries_, c.type);
    summaries_array_ = upload(summaries_, c.k_type);
  }

  // Every third element of a query of the case.
  void set_query(int64_t query, float value) {
    const int64_t row = case_.group * case_.kv_heads * case_.head_dim;
    for (int64_t i = 0; i < row; i += 3) queries_[index(query * (row + case_.q_gap) + i)] = value;
    q_array_ = upload(queries_, case_.type);
  }

  void check_all() {
    for (BlockScore score : {BlockScore::kQuest, BlockScore::kSpecPv}) {
      for (BlockReduce reduce : {BlockReduce::kMean, BlockReduce::kMax, BlockReduce::kLast}) check(score, reduce);
    }
  }

  std::vector<float> run(BlockScore score, BlockReduce reduce) {
    const ScoreCase& c = case_;
    const DeviceArray scores = output_of(c.kv_heads * c.count, DType::kF32);
    const DeviceArray workspace = output_of(score_blocks_workspace_floats(c.kv_heads, c.head_dim), DType::kF32);
    const int64_t heads = c.group * c.kv_heads;
    score_blocks({q_array_.data(), summaries_array_.data(), scores.as<float>(), workspace.as<float>(), c.type, c.k_type,
                  c.queries, heads, c.kv_heads, c.head_dim, heads * c.head_dim + c.q_gap, c.blocks, c.first_block,
                  c.count, score, reduce},
                 stream());
    download(workspace);  // its guards
    return download(scores, DType::kF32);
  }

  void check(BlockScore score, BlockReduce reduce) {
    const ScoreCase& c = case_;
    std::vector<double> expected, magnitude;
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      for (int64_t block = c.first_block; block < c.first_block + c.count; ++block) {
        double sum = 0, size = 0;
        for (int64_t g = 0; g < c.group; ++g) {
          const Score one = reduce_head(head * c.group + g, head * c.blocks + block, score, reduce);
          sum += one.value;
          size += one.magnitude;
        }
        expected.push_back(sum / static_cast<double>(c.group));
        magnitude.push_back(size / static_cast<double>(c.group));
      }
    }
    testing_support::expect_close(run(score, reduce), expected, magnitude, DType::kF32,
                                  str(score == BlockScore::kQuest ? "Quest" : "SpecPV", " reduced by ",
                                      static_cast<int>(reduce), ", queries=", c.queries, " group=", c.group,
                                      " head_dim=", c.head_dim, " ", dtype_name(c.type), " ", dtype_name(c.k_type)));
  }

 private:
  struct Score {
    double value, magnitude;
  };
  Score reduce_head(int64_t head, int64_t row, BlockScore score, BlockReduce reduce) const {
    Score result{reduce == BlockReduce::kMax ? -HUGE_VAL : 0, 0};
    for (int64_t query = reduce == BlockReduce::kLast ? case_.queries - 1 : 0; query < case_.queries; ++query) {
      const Score one = score_one(query, head, row, score);
      if (reduce == BlockReduce::kMax) {
        result.value = std::max(result.value, one.value);
        result.magnitude = std::max(result.magnitude, one.magnitude);
      } else {
        const double share = reduce == BlockReduce::kLast ? 1.0 : 1.0 / static_cast<double>(case_.queries);
        result.value += one.value * share;
        result.magnitude += one.magnitude * share;
      }
    }
    return result;
  }
  Score score_one(int64_t query, int64_t head, int64_t row, BlockScore score) const {
    const int64_t dim = case_.head_dim;
    const float* q = &queries_[index(query * (case_.group * case_.kv_heads * dim + case_.q_gap) + head * dim)];
    const float *most = &summaries_[index(row * 2 * dim)], *least = most + dim;
    double bound = 0, with_most = 0, with_least = 0, size = 0;
    for (int64_t i = 0; i < dim; ++i) {
      const double a = static_cast<double>(q[i]) * static_cast<double>(most[i]);
      const double b = static_cast<double>(q[i]) * static_cast<double>(least[i]);
      bound += std::max(a, b);
      with_most += a;
      with_least += b;
      size += std::max(std::fabs(a), std::fabs(b));
    }
    return {score == BlockScore::kQuest ? bound : std::max(with_most, with_least), size};
  }

  ScoreCase case_;
  std::vector<float> queries_, summaries_;
  DeviceArray q_array_, summaries_array_;
};

TEST_P(ScoresTest, OfEveryGroupAndHeadDim) {
  int64_t turn = 0;
  for (int64_t head_dim : {64, 80, 96, 128, 256, 512}) {
    for (int64_t group = 1; group <= 8; ++group) {
      const DType type = kAllTypes[turn % 3], k_type = kAllTypes[turn / 3 % 3];
      make({1 + turn++ % 7, group, 2, head_dim, 23, 3, 18, type, k_type});
      check_all();
    }
  }
}

TEST_P(ScoresTest, OfEveryPairOfTypes) {
  for (DType type : kAllTypes) {
    for (DType k_type : kAllTypes) {
      make({9, 4, 2, 128, 40, 0, 40, type, k_type, 64});
      check_all();
    }
  }
}

TEST_P(ScoresTest, OfAnyNumberOfQueries) {
  for (int64_t queries : {1, 2, 4, 15, 16, 17, 31, 60, 63, 64, 65, 128}) {
    if (testing::kSanitized && (queries % 16 > 1 || queries > 65)) continue;
    make({queries, 3, 2, 64, 70, 1, 67, DType::kBF16, DType::kBF16});
    check_all();
  }
}

TEST_P(ScoresTest, OfAnyNumberOfBlocks) {
  for (int64_t count : {1, 15, 16, 17, 32, 63, 64, 65, 127, 128, 129, 255, 257, 600}) {
    if (testing::kSanitized && (count % 16 > 1 || count > 129)) continue;
    make({6, 4, 2, 128, 600, 600 - count, count, DType::kF16, DType::kBF16});
    check_all();
  }
}

TEST_P(ScoresTest, OfOddHeadDims) {
  for (int64_t head_dim : {2, 6, 10, 36, 100, 250}) {
    for (DType type : kAllTypes) {
      make({5, 2, 3, head_dim, 21, 2, 19, type, type, 6});
      check_all();
    }
  }
}

// Quest section 3.3: no key of a block has a larger product with the query.
TEST_P(ScoresTest, QuestsBoundIsNeverBelowAKeysOwnProduct) {
  constexpr int64_t kHeads = 3, kRows = 640, kBlocks = kRows / kBlockRows, kDim = 96;
  for (DType type : kAllTypes) {
    const std::vector<float> keys = rounded(random_values(21, kHeads * kRows * kDim), type);
    const std::vector<float> q = rounded(random_values(22, kHeads * kDim), type);
    const DeviceArray k = upload(keys, type), queries = upload(q, type);
    const DeviceArray summaries = output_of(kHeads * kBlocks * 2 * kDim, type);
    const DeviceArray scores = output_of(kHeads * kBlocks, DType::kF32);
    const DeviceArray workspace = output_of(score_blocks_workspace_floats(kHeads, kDim), DType::kF32);
    summarise_blocks({k.data(), summaries.data(), type, 1, kHeads, kDim, kRows, kBlocks, 0, 0, kBlocks}, stream());
    score_blocks({queries.data(), summaries.data(), scores.as<float>(), workspace.as<float>(), type, type, 1, kHeads,
                  kHeads, kDim, kHeads * kDim, kBlocks, 0, kBlocks, BlockScore::kQuest, BlockReduce::kMean},
                 stream());
    const std::vector<float> bounds = download(scores, DType::kF32);
    for (int64_t row = 0; row < kHeads * kRows; ++row) {
      double product = 0, size = 0;
      for (int64_t i = 0; i < kDim; ++i) {
        const double term =
            static_cast<double>(q[index(row / kRows * kDim + i)]) * static_cast<double>(keys[index(row * kDim + i)]);
        product += term;
        size += std::fabs(term);
      }
      ASSERT_GE(static_cast<double>(bounds[index(row / kBlockRows)]), product - 2e-6 * size) << "row " << row;
    }
  }
}

// One query that is not finite among others leaves the order of the blocks to them.
TEST_P(ScoresTest, TakeForZeroWhatIsNotFinite) {
  for (DType type : kAllTypes) {
    for (int64_t queries : {1, 6}) {
      for (float value : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
        for (BlockScore score : {BlockScore::kQuest, BlockScore::kSpecPv}) {
          for (BlockReduce reduce : {BlockReduce::kMean, BlockReduce::kMax, BlockReduce::kLast}) {
            make({queries, 3, 2, 36, 21, 2, 19, type, type, 6});
            set_query(queries - 1, 0.0f);
            const std::vector<float> expected = run(score, reduce);
            set_query(queries - 1, value);
            EXPECT_EQ(run(score, reduce), expected) << queries << " queries, " << dtype_name(type) << " " << value;
          }
        }
      }
    }
  }
}

INSTANTIATE_KERNEL_TEST(ScoresTest);

// ---- Bugs of the caller ---------------------------------------------------------------------------------------------

class BlocksDeathTest : public BlocksTest {};

TEST_P(BlocksDeathTest, NamesWhatIsWrong) {
  const DeviceArray array = output(4096);
  void* const any = array.data();
  SummariseBlocksParams summarise{any, any, DType::kF32, 1, 1, 2, 64, 8, 0, 6, 3};
  EXPECT_DEATH(summarise_blocks(summarise, stream()), "blocks 6 \\+ 3 of 8");
  summarise.first_block = 0;
  summarise.count = 5;
  EXPECT_DEATH(summarise_blocks(summarise, stream()), "count=5 ring_rows=64");
  ScoreBlocksParams score{any, any, array.as<float>(),  array.as<float>(), DType::kF32, DType::kF32, 0, 2, 1, 2, 4, 8,
                          0,   8,   BlockScore::kQuest, BlockReduce::kMean};
  EXPECT_DEATH(score_blocks(score, stream()), "queries=0");
  score.queries = 1;
  score.head_dim = 258;
  EXPECT_DEATH(score_blocks(score, stream()), "head_dim=258");
  const SelectBlocksParams select{array.as<float>(), array.as<int32_t>(), 1, 4, 5, 0};
  EXPECT_DEATH(select_blocks(select, stream()), "keep=5 count=4");
  GatherBlocksParams gather{
      array.as<int32_t>(), any, any, DType::kF32, DType::kF32, DType::kF32, DType::kF32, 1, 2, 2, 31, 1, {}};
  gather.segments[0] = {any, any, 0, 64, 64};
  EXPECT_DEATH(gather_blocks(gather, stream()), "keep=2 out_rows=31");
  gather.out_rows = 32;
  gather.segments[0].position = 16;
  EXPECT_DEATH(gather_blocks(gather, stream()), "position=16");
  const CopyWindowParams window{any, any, any, any, DType::kF32, DType::kF32, 1, 1, 2, 8, 4, 0, 0, 16, 18, 3};
  EXPECT_DEATH(copy_window(window, stream()), "positions 18 \\+ 3 in a window of 4 from 16");
}

INSTANTIATE_CHECK_TEST(BlocksDeathTest);

}  // namespace
}  // namespace headrace
