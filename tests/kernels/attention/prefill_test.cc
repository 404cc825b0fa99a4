#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "tests/kernels/attention/fixture.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_close;
using testing_support::random_values;
using testing_support::rounded;

class PrefillAttentionTest : public AttentionTest {
 protected:
  // Queries [first, first + count) of q ([rows][heads][head_dim]), with rows `spare` elements apart.
  std::vector<std::byte> run(const AttentionCase& c, const Segments& segments, const std::vector<float>& q,
                             int64_t first, int64_t count, int64_t spare = 0);
  void check(const AttentionCase& c, int64_t rows, int64_t rows_each, int64_t first);
};
INSTANTIATE_KERNEL_TEST(PrefillAttentionTest);

std::vector<float> queries(const AttentionCase& c, int64_t rows) {
  return rounded(random_values(5, rows * c.heads * c.head_dim, c.q_scale), c.type);
}

std::vector<std::byte> PrefillAttentionTest::run(const AttentionCase& c, const Segments& segments,
                                                 const std::vector<float>& q, int64_t first, int64_t count,
                                                 int64_t spare) {
  const int64_t row = c.heads * c.head_dim;
  std::vector<float> strided(static_cast<size_t>(count * (row + spare)), std::nanf(""));
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(q.begin() + (first + i) * row, row, strided.begin() + i * (row + spare));
  }
  const DeviceArray q_array = upload(strided, c.type);
  const DeviceArray list = upload_raw(segments.list);
  const DeviceArray out = output(static_cast<uint64_t>(count * row) * dtype_bytes(c.type));
  PrefillAttentionParams params{};
  params.shape = c.shape(count, row + spare);
  params.q = q_array.data();
  params.segments = list.as<KvSegment>();
  params.out = out.data();
  params.segment_count = static_cast<int64_t>(segments.list.size());
  params.first_position = first;
  const DeviceArray sinks = upload(c.all_sinks(), DType::kF32);
  if (c.sinks) params.sinks = sinks.as<float>();
  prefill_attention(params, stream());
  return download(out);
}

void PrefillAttentionTest::check(const AttentionCase& c, int64_t rows, int64_t rows_each, int64_t first) {
  const AttentionContext context(c, rows, 1);
  const std::vector<float> q = queries(c, rows);
  AttentionExpectation expected;
  for (int64_t i = first; i < rows; ++i) {
    attend(context, q.data() + i * c.heads * c.head_dim, seen_rows(c, i), prefill_weight_error(c), &expected);
  }
  const auto out = run(c, segments(context, rows_each, 3), q, first, rows - first, 5);
  expect_close(testing_support::decode(out, c.type), expected.values, expected.magnitude, c.type,
               str(c.name(), ", rows ", first, " to ", rows, " in segments of ", rows_each));
}

TEST_P(PrefillAttentionTest, EqualsPlainAttention) {
  for (const AttentionCase& c : attention_cases()) check(c, 141, 64, 0);
}

TEST_P(PrefillAttentionTest, AnyLengthAndFirstPosition) {
  for (DType type : {DType::kF32, DType::kBF16}) {
    const AttentionCase c{3, 1, 20, type, type, type};
    for (int64_t rows : {1, 2, 63, 64, 65, 127, 128, 129, 300}) check(c, rows, 128, 0);
    for (int64_t first : {1, 63, 64, 200, 299}) check(c, 300, 192, first);
    check(c, 700, 512, 600);
  }
  for (const int64_t head_dim : {24, 64, 80, 128, 256, 512}) {  // of the kernels with tiles
    for (const DType type : {DType::kBF16, DType::kF16}) {
      const bool large = head_dim >= 256;
      const AttentionCase c{large ? 1 : 4, large ? 1 : 2, head_dim, type, type, type};
      const int64_t rows = testing::kSanitized ? 200 : large ? 400 : 700;
      check(c, rows, large ? 192 : 512, 0);
      check(c, rows, 512, rows / 2 - 17);
    }
  }
}

TEST_P(PrefillAttentionTest, SeesItsWindow) {
  for (const AttentionCase& c : windowed_cases()) {
    if (low_bit(c.k_type) || low_bit(c.v_type)) continue;
    check(c, 300, 192, 0);
    check(c, 460, 128, 400);
  }
  for (int64_t window : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 299, 300}) {
    for (DType type : {DType::kF32, DType::kBF16}) {
      check({3, 1, type == DType::kF32 ? 20 : 24, type, type, type, 1.0f, window}, 300, 128, 0);
      check({2, 1, 64, type, type, type, 20.0f, window}, 300, 64, 150);
    }
  }
}

TEST_P(PrefillAttentionTest, ASinkTakesItsPart) {
  for (const AttentionCase& c : sink_cases()) {
    if (low_bit(c.k_type) || low_bit(c.v_type)) continue;
    check(c, 141, 64, 0);
    check(c, 300, 192, 150);
  }
}

// One key that outweighs all others by far, at every place of a tile and beyond: the maximum changes late.
TEST_P(PrefillAttentionTest, OneHugeKey) {
  struct Place {
    int64_t head_dim, row;
  };
  for (DType type : testing_support::kAllTypes) {
    for (const Place& at :
         {Place{32, 0}, Place{32, 5}, Place{32, 63}, Place{32, 64}, Place{32, 100}, Place{32, 129}, Place{512, 100}}) {
      const int64_t place = at.row;
      const AttentionCase c{2, 1, at.head_dim, type, type, type};
      AttentionContext context(c, 130, 3);
      for (int64_t d = 0; d < c.head_dim; ++d) context.k[static_cast<size_t>(place * c.head_dim + d)] = 96;
      std::vector<float> q(static_cast<size_t>(130 * c.heads * c.head_dim), 8.0f);
      AttentionExpectation expected;
      std::vector<int64_t> seen;
      for (int64_t i = 0; i < 130; ++i) {
        seen.push_back(i);
        attend(context, q.data(), seen, 0x1p-8, &expected);
      }
      expect_close(testing_support::decode(run(c, segments(context, 64, 0), q, 0, 130), type), expected.values,
                   expected.magnitude, type, str(c.name(), ", huge key at ", place));
    }
  }
}

// docs/design.md, section 6: a query's bits depend on its position and the rows it sees, and on nothing else.
TEST_P(PrefillAttentionTest, SameBitsHoweverItIsCut) {
  constexpr int64_t kRows = 333;
  for (const AttentionCase& c : {AttentionCase{9, 3, 64}, AttentionCase{7, 1, 18},
                                 AttentionCase{9, 3, 64, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{70, 1, 16, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{2, 1, 128, DType::kBF16, DType::kBF16, DType::kBF16},
                                 AttentionCase{2, 1, 128, DType::kBF16, DType::kBF16, DType::kBF16, 20.0f},
                                 AttentionCase{2, 2, 48, DType::kBF16, DType::kBF16, DType::kF32},
                                 AttentionCase{2, 1, 128, DType::kBF16, DType::kF16, DType::kF16, 20.0f},
                                 AttentionCase{1, 1, 256, DType::kBF16, DType::kBF16, DType::kBF16, 20.0f},
                                 AttentionCase{2, 1, 18, DType::kF32, DType::kF32, DType::kF32, 1.0f, 100},
                                 AttentionCase{2, 1, 128, DType::kBF16, DType::kBF16, DType::kBF16, 20.0f, 70},
                                 AttentionCase{2, 1, 64, DType::kBF16, DType::kF16, DType::kF16, 20.0f, 128},
                                 AttentionCase{1, 1, 256, DType::kF16, DType::kF16, DType::kF16, 20.0f, 33},
                                 AttentionCase{3, 1, 512, DType::kBF16, DType::kBF16, DType::kBF16, 20.0f},
                                 AttentionCase{1, 1, 320, DType::kF16, DType::kF16, DType::kF16, 20.0f, 70},
                                 AttentionCase{2, 2, 512, DType::kBF16, DType::kF16, DType::kF16},
                                 AttentionCase{2, 1, 32, DType::kF16, DType::kF16, DType::kF16}}) {
    const AttentionContext context(c, kRows, 1);
    const std::vector<float> q = queries(c, kRows);
    const size_t row_bytes = static_cast<size_t>(c.heads * c.head_dim) * dtype_bytes(c.type);
    Segments one = segments(context, 512, 0);
    const std::vector<std::byte> all = run(c, one, q, 0, kRows);
    const auto expect_same = [&](const Segments& list, int64_t first, int64_t count, const std::string& what) {
      const auto got = run(c, list, q, first, count, 1);
      EXPECT_EQ(std::memcmp(got.data(), all.data() + static_cast<size_t>(first) * row_bytes, got.size()), 0)
          << c.name() << ": " << what << " of " << count << " from " << first;
    };
    for (int64_t first = 0; first < kRows; first += 64) {
      expect_same(one, first, std::min<int64_t>(64, kRows - first), "a call");
      expect_same(one, first, kRows - first, "a call");
      // As in a prompt that is built up: the rows behind these do not exist yet.
      AttentionContext shorter(context);
      shorter.rows = std::min(first + 64, kRows);
      expect_same(segments(shorter, 128, 2), first, shorter.rows - first, "nothing behind a call");
    }
    for (int64_t first = 0; first < kRows; first += 7) expect_same(one, first, 1, "a query alone");
    expect_same(one, 13, 200, "an odd cut");
    expect_same(segments(context, 64, 1), 0, kRows, "many segments");
    if (c.window > 0) {  // rows before the window need not be there
      Segments some = segments(context, 64, 1);
      some.list.erase(some.list.begin(), some.list.begin() + first_seen(290, c.window) / 64);
      expect_same(some, 290, kRows - 290, "fewer segments");
    }
    one = {};
    for (int threads : {1, 3}) {
      open(threads);
      expect_same(segments(context, 192, 0), 0, kRows, str(threads, " threads"));
    }
    open(2);
  }
}

// A query's bits do not depend on the rows behind it, though these are not finite; and a query that sees such a row has
// no finite result.
TEST_P(PrefillAttentionTest, RowsBehindAQueryDoNotReachIt) {
  constexpr int64_t kRows = 140;
  const std::vector<Poison> all = poisons();
  size_t turn = 0;  // a case has one poison for each first row
  for (const AttentionCase& c : attention_cases()) {
    const AttentionContext context(c, kRows, 1);
    const std::vector<float> q = queries(c, kRows);
    const size_t row = static_cast<size_t>(c.heads * c.head_dim), row_bytes = row * dtype_bytes(c.type);
    const std::vector<std::byte> clean = run(c, segments(context, 128, 2), q, 0, kRows);
    for (int64_t first : {1, 63, 131}) {
      const Poison& poison = all[turn++ % all.size()];
      AttentionContext poisoned(context);
      poison.put(first, kRows, &poisoned);
      const auto got = run(c, segments(poisoned, 128, 2), q, 0, kRows);
      ASSERT_EQ(std::memcmp(got.data(), clean.data(), static_cast<size_t>(first) * row_bytes), 0)
          << c.name() << ": " << poison.name() << " from row " << first << " on";
      const std::vector<float> values = testing_support::decode(got, c.type);
      for (size_t i = static_cast<size_t>(first) * row; poison.shows() && i < values.size(); i += row) {
        ASSERT_FALSE(std::isfinite(values[i + row - 1])) << c.name() << ": " << poison.name() << ", row " << i / row;
      }
    }
    turn += 2;  // so that each first row has had each of the six poisons after six cases
  }
}

// A query's bits do not depend on the rows before its window.
TEST_P(PrefillAttentionTest, RowsBeforeAWindowDoNotReachIt) {
  constexpr int64_t kRows = 333;
  const std::vector<Poison> all = poisons();
  size_t turn = 0;
  for (const AttentionCase& c : windowed_cases()) {
    if (low_bit(c.k_type) || low_bit(c.v_type)) continue;
    const AttentionContext context(c, kRows, 1);
    const std::vector<float> q = queries(c, kRows);
    const size_t row = static_cast<size_t>(c.heads * c.head_dim), row_bytes = row * dtype_bytes(c.type);
    const std::vector<std::byte> clean = run(c, segments(context, 128, 2), q, 0, kRows);
    for (int64_t bad : {0, 37, 95}) {
      const Poison& poison = all[turn++ % all.size()];
      AttentionContext poisoned(context);
      poison.put(bad, bad + 1, &poisoned);
      const auto got = run(c, segments(poisoned, 128, 2), q, 0, kRows);
      const std::vector<float> values = testing_support::decode(got, c.type);
      for (int64_t i = 0; i < kRows; ++i) {
        const auto at = static_cast<size_t>(i);
        const std::string what = str(c.name(), ": ", poison.name(), " in row ", bad, ", query ", i);
        if (bad > i || bad < first_seen(i, c.window)) {
          ASSERT_EQ(std::memcmp(&got[at * row_bytes], &clean[at * row_bytes], row_bytes), 0) << what;
        } else if (poison.shows()) {
          ASSERT_FALSE(std::isfinite(values[at * row + row - 1])) << what;
        }
      }
    }
    ++turn;
  }
}

}  // namespace
}  // namespace headrace
