// The scores of chunks against a softmax in double, and what the op rejects.
#include "kernels/chunks/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/kernel_test.h"
#include "tests/support/low_bit_rows.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::kAllTypes;
using testing_support::KernelTest;
using testing_support::random_values;
using testing_support::rounded;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

size_t at(int64_t value) { return static_cast<size_t>(value); }

struct ChunksCase {
  int64_t heads = 8, kv_heads = 2, head_dim = 64, chunk_rows = 32;
  std::vector<int64_t> segments = {512};  // their rows
  int64_t rows = 512;
  DType type = DType::kBF16, k_type = DType::kBF16;
  int64_t before = 0, after = 0;  // rows of a plane before a segment's own (low-bit ones), and after them
  float scale = 0.1f;
  int64_t k_shift = 0;  // bytes from an aligned address to the first segment's
};

// ---- Scores ---------------------------------------------------------------------------------------------------------

class ChunkScoresTest : public KernelTest {
 protected:
  void TearDown() override {  // before the device
    planes_.clear();
    q_array_ = {};
    KernelTest::TearDown();
  }

  void make(const ChunksCase& of) {
    case_ = of;
    planes_.clear();
    segments_.clear();
    keys_.assign(at(of.kv_heads * total_rows() * of.head_dim), kNan);
    q_ = rounded(random_values(5, of.heads * of.head_dim), of.type);
    q_array_ = upload(q_, of.type);
    int64_t position = 0;
    for (int64_t rows : of.segments) {
      add_segment(position, rows);
      position += rows;
    }
  }

  std::vector<float> run() {
    const int64_t chunks = ceil_div(case_.rows, case_.chunk_rows);
    const DeviceArray scores = output(at(chunks) * sizeof(float));
    const DeviceArray workspace = output(score_chunks_workspace_bytes(case_.heads, case_.head_dim, chunks));
    std::vector<KvSegment> list = segments_;
    ScoreChunksParams params = params_of(list);
    params.workspace = workspace.data();
    params.scores = scores.as<float>();
    score_chunks(params, stream());
    std::fill(list.begin(), list.end(), KvSegment{});  // the call has read them
    download(workspace);                               // its guards
    if (add_twice_) {
      list = segments_;
      params.segments = list.data();
      params.add = true;
      score_chunks(params, stream());
    }
    return download(scores, DType::kF32);
  }

  // tolerance: of a score, relative. Tensor cores truncate as they add, and an error of a product is multiplied.
  void check(const ChunksCase& of, double tolerance = 5e-4) {
    make(of);
    SCOPED_TRACE(str(of.heads, "/", of.kv_heads, " heads of ", of.head_dim, ", ", dtype_name(of.type), " and ",
                     dtype_name(of.k_type), ", ", of.rows, " rows in ", of.segments.size(), " segments, chunks of ",
                     of.chunk_rows));
    const std::vector<float> actual = run();
    const std::vector<double> expected = plain();
    ASSERT_EQ(actual.size(), expected.size());
    double sum = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      ASSERT_NEAR(actual[i], expected[i], tolerance * expected[i] + 1e-30) << "chunk " << i;
      const int64_t begin = static_cast<int64_t>(i) * of.chunk_rows;
      sum += static_cast<double>(actual[i]) * static_cast<double>(std::min(of.chunk_rows, of.rows - begin));
    }
    EXPECT_NEAR(sum, 1.0, tolerance);
    EXPECT_EQ(run(), actual);  // the sums have one order
  }

  ScoreChunksParams params_of(const std::vector<KvSegment>& list) const {
    return {.q = q_array_.data(),
            .segments = list.data(),
            .workspace = nullptr,
            .scores = nullptr,
            .type = case_.type,
            .k_type = case_.k_type,
            .segment_count = static_cast<int64_t>(list.size()),
            .rows = case_.rows,
            .chunk_rows = case_.chunk_rows,
            .heads = case_.heads,
            .kv_heads = case_.kv_heads,
            .head_dim = case_.head_dim,
            .scale = case_.scale};
  }

  // Overwrites an element of the last query head.
  void set_query(float value) {
    q_.back() = value;
    q_array_ = upload(q_, case_.type);
  }

  ChunksCase case_;
  std::vector<KvSegment> segments_;
  bool add_twice_ = false;  // the second call adds to the scores of the first

 private:
  int64_t total_rows() const { return std::accumulate(case_.segments.begin(), case_.segments.end(), int64_t{0}); }

  // The rows of a segment that do not count, and its plane's other rows, are NaN.
  void add_segment(int64_t position, int64_t rows) {
    const ChunksCase& c = case_;
    const int64_t stride = c.before + rows + c.after, dim = c.head_dim;
    std::vector<float> plane = random_values(100 + at(position), c.kv_heads * stride * dim);
    for (int64_t row = 0; row < c.kv_heads * stride; ++row) {
      const int64_t own = row % stride - c.before;
      if (own >= 0 && own < rows && position + own < c.rows) continue;
      std::fill_n(plane.begin() + row * dim, dim, kNan);
    }
    const bool low = low_bit(c.k_type);
    std::vector<std::byte> bytes =
        low ? testing_support::low_bit_plane(plane, c.k_type, dim) : testing_support::encode(plane, c.k_type);
    const std::vector<float> values =
        low ? testing_support::low_bit_values(bytes, c.k_type, dim) : testing_support::decode(bytes, c.k_type);
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      std::copy_n(values.begin() + (head * stride + c.before) * dim, rows * dim,
                  keys_.begin() + (head * total_rows() + position) * dim);
    }
    bytes.insert(bytes.begin(), at(c.k_shift), std::byte{0xff});
    planes_.push_back(upload(bytes));
    const std::byte* k = planes_.back().data() + c.k_shift;
    if (!low) k += c.before * dim * static_cast<int64_t>(dtype_bytes(c.k_type));
    segments_.push_back({.k = k,
                         .v = k,
                         .position = static_cast<int32_t>(position),
                         .rows = static_cast<int32_t>(rows),
                         .stride_rows = static_cast<int32_t>(stride),
                         .first_row = static_cast<int32_t>(low ? c.before : 0)});
  }

  std::vector<double> plain() const {
    const ChunksCase& c = case_;
    std::vector<double> scores(at(ceil_div(c.rows, c.chunk_rows)));
    for (int64_t head = 0; head < c.heads; ++head) {
      std::vector<double> products;
      for (int64_t row = 0; row < c.rows; ++row) {
        const int64_t key = head / (c.heads / c.kv_heads) * total_rows() + row;
        double sum = 0;
        for (int64_t i = 0; i < c.head_dim; ++i) {
          sum +=
              static_cast<double>(q_[at(head * c.head_dim + i)]) * static_cast<double>(keys_[at(key * c.head_dim + i)]);
        }
        products.push_back(sum * static_cast<double>(c.scale));
      }
      const double top = *std::max_element(products.begin(), products.end());
      double all = 0;
      for (double& product : products) all += product = std::exp(product - top);
      for (int64_t row = 0; row < c.rows; ++row) {
        const int64_t begin = row / c.chunk_rows * c.chunk_rows;
        const auto length = static_cast<double>(std::min(c.chunk_rows, c.rows - begin));
        scores[at(row / c.chunk_rows)] += products[at(row)] / all / length / static_cast<double>(c.heads);
      }
    }
    return scores;
  }

  std::vector<float> q_, keys_;  // keys: [kv_heads, rows of all segments, head_dim]
  DeviceArray q_array_;
  std::vector<DeviceArray> planes_;
};

TEST_P(ChunkScoresTest, OfEveryGroupAndHeadDim) {
  constexpr DType kOthers[][2] = {
      {DType::kF32, DType::kF32}, {DType::kF16, DType::kF16}, {DType::kF16, DType::kInt8}, {DType::kF32, DType::kBF16}};
  size_t turn = 0;
  for (int64_t head_dim : {8, 24, 64, 80, 96, 128, 256}) {
    for (int64_t group : {1, 2, 3, 4, 5, 7, 8, 9}) {
      if (testing::kSanitized && (group + head_dim / 8) % 2 == 0) continue;
      const auto& [type, k_type] = kOthers[(turn + turn / 8) % std::size(kOthers)];
      ChunksCase c{.heads = 2 * group, .kv_heads = 2, .head_dim = head_dim, .rows = 300, .scale = 0.05f};
      check(c);
      c.type = type;
      c.k_type = k_type;
      check(c);
      ++turn;
    }
  }
}

TEST_P(ChunkScoresTest, OfEveryPairOfTypes) {
  for (DType type : kAllTypes) {
    for (DType k_type : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
      check({.head_dim = 128, .rows = 511, .type = type, .k_type = k_type, .scale = 0.05f});
      check({.head_dim = 80, .rows = 33, .type = type, .k_type = k_type, .scale = 0.05f});
    }
  }
}

// On CUDA the rotated query is rounded to its type.
TEST_P(ChunkScoresTest, OfInt4Rows) {
  for (int64_t head_dim : {32, 64, 128, 256}) {
    check({.head_dim = head_dim, .rows = 500, .type = DType::kF32, .k_type = DType::kInt4, .scale = 0.05f});
  }
  check({.head_dim = 128, .rows = 500, .type = DType::kBF16, .k_type = DType::kInt4, .scale = 0.01f}, 0.05);
}

TEST_P(ChunkScoresTest, AreAddedToWhatThereIs) {
  for (const DType k_type : {DType::kF32, DType::kBF16}) {
    make({.rows = 500, .k_type = k_type});
    std::vector<float> once = run();
    add_twice_ = true;
    for (float& score : once) score += score;
    EXPECT_EQ(run(), once);
    add_twice_ = false;
  }
}

TEST_P(ChunkScoresTest, OfOddHeadDims) {
  for (int64_t head_dim : {2, 6, 10, 36, 100, 250}) {
    for (DType k_type : {DType::kF32, DType::kF16, DType::kBF16, DType::kInt8}) {
      check({.heads = 6, .head_dim = head_dim, .rows = 300, .k_type = k_type, .scale = 0.05f});
    }
  }
}

TEST_P(ChunkScoresTest, OfAnyNumberOfRows) {
  for (int64_t rows : {1, 2, 31, 32, 33, 63, 64, 65, 255, 256, 257, 511, 512}) {
    for (DType type : {DType::kBF16, DType::kInt8}) check({.rows = rows, .k_type = type});
  }
}

TEST_P(ChunkScoresTest, OfChunksOfAnySize) {
  for (int64_t chunk_rows : {1, 3, 8, 16, 24, 32, 64, 100, 128, 511, 512, 1000}) {
    for (int64_t head_dim : {16, 64, 128, 256}) {
      check({.head_dim = head_dim, .chunk_rows = chunk_rows, .rows = 500, .k_type = DType::kBF16, .scale = 0.05f});
    }
  }
}

TEST_P(ChunkScoresTest, OfRowsInSeveralSegments) {
  for (DType k_type : {DType::kF32, DType::kBF16, DType::kInt8, DType::kInt4}) {
    for (int64_t rows : {65, 192, 300, 447, 448}) {  // from the second segment on
      if (testing::kSanitized && rows != 65 && rows != 447) continue;
      for (int64_t chunk_rows : {24, 32, 100, 448}) {
        check({.chunk_rows = chunk_rows,
               .segments = {64, 0, 128, 0, 0, 256},
               .rows = rows,
               .type = k_type == DType::kInt4 ? DType::kF32 : DType::kBF16,
               .k_type = k_type,
               .before = low_bit(k_type) ? 16 : 0,
               .after = 8});
      }
    }
  }
  check({.head_dim = 128, .segments = {64, 128}, .rows = 150, .k_type = DType::kF16, .before = 8, .after = 56});
}

// More than one launch has room for: a run of chunks ends within the segments of the next.
TEST_P(ChunkScoresTest, OfRowsInMoreSegmentsThanALaunchHas) {
  for (int64_t chunk_rows : {32, 48, 100, 5000}) {
    if (testing::kSanitized && chunk_rows % 16 == 0) continue;
    check({.heads = 3,
           .kv_heads = 1,
           .head_dim = 16,
           .chunk_rows = chunk_rows,
           .segments = std::vector<int64_t>(at(2 * kMaxPrefixSegments + 3), 64),
           .rows = (2 * kMaxPrefixSegments + 2) * 64 + 7,
           .type = DType::kBF16,
           .k_type = DType::kBF16});
  }
}

TEST_P(ChunkScoresTest, OfALongText) {
  check({.heads = 8,
         .kv_heads = 2,
         .head_dim = 128,
         .segments = {512, 512, 2048, 2048, 2048},
         .rows = 7003,
         .type = DType::kBF16,
         .k_type = DType::kBF16,
         .scale = 0.02f});
}

TEST_P(ChunkScoresTest, OfKeysThatAreNotAligned) {
  check({.head_dim = 128, .rows = 500, .type = DType::kBF16, .k_type = DType::kBF16, .scale = 0.05f, .k_shift = 4});
  check({.head_dim = 128, .rows = 500, .type = DType::kBF16, .k_type = DType::kInt8, .scale = 0.05f, .k_shift = 2});
}

// Weights from 1 to less than f32 has: no sum overflows, and none is divided by zero.
TEST_P(ChunkScoresTest, OfVeryUnequalRows) {
  for (DType k_type : {DType::kF32, DType::kBF16, DType::kInt8}) {
    make({.rows = 500, .k_type = k_type, .scale = 5.0f});
    const std::vector<float> scores = run();
    EXPECT_NEAR(std::accumulate(scores.begin(), scores.end() - 1, 0.0) * 32 + scores.back() * 20.0, 1.0, 1e-4);
    for (float score : scores) EXPECT_GE(score, 0.0f);
  }
}

TEST_P(ChunkScoresTest, AreAllNanWithAQueryThatIs) {
  make({.rows = 500, .type = DType::kBF16, .k_type = DType::kBF16});
  set_query(kNan);
  for (float score : run()) EXPECT_TRUE(std::isnan(score));
}

INSTANTIATE_KERNEL_TEST(ChunkScoresTest);

// ---- Bugs of the caller ---------------------------------------------------------------------------------------------

class ChunksDeathTest : public ChunkScoresTest {};

TEST_P(ChunksDeathTest, NamesWhatIsWrong) {
  make({.segments = {64, 128}, .rows = 192});
  const DeviceArray memory = output(65536);
  ScoreChunksParams params = params_of(segments_);
  params.workspace = memory.data();
  params.scores = memory.as<float>();
  const auto with = [&](auto change) {
    ScoreChunksParams changed = params;
    change(changed);
    score_chunks(changed, stream());
  };
  EXPECT_DEATH(with([](auto& p) { p.rows = 193; }), "rows=193 in segments of 192");
  EXPECT_DEATH(with([](auto& p) { p.rows = 0; }), "rows=0");
  EXPECT_DEATH(with([](auto& p) { p.chunk_rows = 0; }), "chunk_rows=0");
  EXPECT_DEATH(with([](auto& p) { p.kv_heads = 3; }), "heads=8 kv_heads=3");
  EXPECT_DEATH(with([](auto& p) { p.head_dim = 258; }), "head_dim=258");
  EXPECT_DEATH(with([](auto& p) { p.type = DType::kInt8; }), "int8");
  EXPECT_DEATH(with([](auto& p) { p.k_type = DType::kInt4, p.head_dim = 96; }), "head_dim=96");
  segments_[1].position = 128;
  EXPECT_DEATH(score_chunks(params, stream()), "position=128 after row 64");
}

INSTANTIATE_CHECK_TEST(ChunksDeathTest);

}  // namespace
}  // namespace headrace
