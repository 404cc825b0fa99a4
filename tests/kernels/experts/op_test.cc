#include "kernels/experts/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;
using testing_support::expect_close;
using testing_support::kAllTypes;
using testing_support::random_values;
using testing_support::rounded;

size_t index_of(int64_t index) { return static_cast<size_t>(index); }

struct Routes {
  std::vector<int32_t> experts;
  std::vector<float> shares;
  bool operator==(const Routes&) const = default;
};

struct Lists {
  std::vector<int32_t> begin, places, from, present;
  bool operator==(const Lists&) const = default;
};

class ExpertsTest : public testing_support::KernelTest {
 protected:
  Routes routes(const std::vector<float>& scores, int64_t count, int64_t used, bool normalise) {
    const int64_t rows = static_cast<int64_t>(scores.size()) / count;
    const DeviceArray in = upload_raw(scores), experts = output(index_of(rows * used) * 4),
                      shares = output(index_of(rows * used) * 4);
    route({.scores = in.as<float>(),
           .experts = experts.as<int32_t>(),
           .shares = shares.as<float>(),
           .rows = rows,
           .count = count,
           .used = used,
           .stride = count,
           .normalise = normalise},
          stream());
    return {download_raw<int32_t>(experts), download_raw<float>(shares)};
  }
  Lists listed(const std::vector<int32_t>& experts, int64_t count, int64_t used, bool shared) {
    ListPairsParams params{};
    params.pairs = static_cast<int64_t>(experts.size());
    params.count = count;
    params.used = used;
    params.shared = shared;
    const DeviceArray in = upload_raw(experts), begin = output(index_of(params.all_experts() + 1) * 4),
                      places = output(experts.size() * 4), from = output(index_of(params.all_places()) * 4),
                      present = output(index_of(params.most_present()) * 4);
    params.experts = in.as<int32_t>();
    params.begin = begin.as<int32_t>();
    params.places = places.as<int32_t>();
    params.from = from.as<int32_t>();
    params.present = present.as<int32_t>();
    list_pairs(params, stream());
    return {download_raw<int32_t>(begin), download_raw<int32_t>(places), download_raw<int32_t>(from),
            download_raw<int32_t>(present)};
  }
};
INSTANTIATE_KERNEL_TEST(ExpertsTest);

// A factor of each expert multiplies the shares that it would have without.
TEST_P(ExpertsTest, SharesHaveTheirExpertsFactors) {
  constexpr int64_t kCount = 37, kUsed = 5, kRows = 9;
  const std::vector<float> factors = random_values(5, kCount);
  const DeviceArray scores = upload_raw(random_values(4, kRows * kCount, 3.0f)), of_experts = upload_raw(factors);
  const auto routed_with = [&](const float* by) {
    const DeviceArray experts = output(index_of(kRows * kUsed) * 4), shares = output(index_of(kRows * kUsed) * 4);
    route({.scores = scores.as<float>(),
           .experts = experts.as<int32_t>(),
           .shares = shares.as<float>(),
           .rows = kRows,
           .count = kCount,
           .used = kUsed,
           .stride = kCount,
           .normalise = true,
           .factors = by},
          stream());
    return std::pair{download_raw<int32_t>(experts), download_raw<float>(shares)};
  };
  const auto [chosen, plain] = routed_with(nullptr);
  const auto [same, scaled] = routed_with(of_experts.as<float>());
  EXPECT_EQ(same, chosen);
  for (size_t i = 0; i < chosen.size(); ++i) EXPECT_EQ(scaled[i], plain[i] * factors[index_of(chosen[i])]) << i;
}

TEST_P(ExpertsTest, RouteTakesTheLargestInOrder) {
  constexpr int64_t kRows = 37;
  for (const auto& [count, used] : {std::pair<int64_t, int64_t>{8, 2}, {128, 8}, {5, 5}, {1, 1}, {512, 10}, {33, 32}}) {
    const std::vector<float> scores = random_values(1, kRows * count);
    for (const bool normalise : {false, true}) {
      const Routes got = routes(scores, count, used, normalise);
      std::vector<double> expected;
      for (int64_t row = 0; row < kRows; ++row) {
        const float* const of_row = scores.data() + row * count;
        std::vector<int32_t> order(index_of(count));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return of_row[a] > of_row[b]; });
        double all = 0, chosen = 0;
        for (int64_t i = 0; i < count; ++i) {
          const double e = std::exp(static_cast<double>(of_row[order[index_of(i)]]) - of_row[order[0]]);
          all += e;
          if (i < used) chosen += e;
        }
        for (int64_t r = 0; r < used; ++r) {
          ASSERT_EQ(got.experts[index_of(row * used + r)], order[index_of(r)]) << count << " row " << row;
          expected.push_back(std::exp(static_cast<double>(of_row[order[index_of(r)]]) - of_row[order[0]]) /
                             (normalise ? chosen : all));
        }
      }
      expect_close(got.shares, expected, {}, DType::kF32, std::to_string(count) + " experts");
    }
  }
}

// What follows a row's scores is no expert's, however large it is.
TEST_P(ExpertsTest, ScoresMayBeApart) {
  constexpr int64_t kRows = 70, kCount = 33, kUsed = 4, kStride = kCount + 1;
  const std::vector<float> scores = random_values(6, kRows * kCount);
  std::vector<float> apart(index_of(kRows * kStride), 100.0f);
  for (int64_t i = 0; i < kRows * kCount; ++i) apart[index_of(i / kCount * kStride + i % kCount)] = scores[index_of(i)];
  const Routes expected = routes(scores, kCount, kUsed, true);
  const DeviceArray in = upload_raw(apart), experts = output(index_of(kRows * kUsed) * 4),
                    shares = output(index_of(kRows * kUsed) * 4);
  for (const int64_t rows : {kRows, int64_t{3}}) {
    route({.scores = in.as<float>(),
           .experts = experts.as<int32_t>(),
           .shares = shares.as<float>(),
           .rows = rows,
           .count = kCount,
           .used = kUsed,
           .stride = kStride,
           .normalise = true},
          stream());
    const Routes got = {download_raw<int32_t>(experts), download_raw<float>(shares)};
    EXPECT_EQ(got, expected) << rows;
  }
}

TEST_P(ExpertsTest, OfEqualScoresTheLowerIndexIsFirst) {
  std::vector<float> scores(128, 0.5f);
  scores[100] = scores[7] = 1.0f;
  scores[3] = -0.0f;
  const Routes got = routes(scores, 128, 8, true);
  EXPECT_EQ(got.experts, (std::vector<int32_t>{7, 100, 0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(got.shares[0], got.shares[1]);
  EXPECT_EQ(routes({-0.0f, 0.0f, -0.0f}, 3, 3, true).experts, (std::vector<int32_t>{0, 1, 2}));
}

// A damaged model's: whatever the scores are, the experts exist and differ.
TEST_P(ExpertsTest, ScoresThatAreNotNumbersChooseExperts) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& scores :
       {std::vector<float>(40, kNaN), std::vector<float>(40, kInf), std::vector<float>(40, -kInf)}) {
    std::vector<int32_t> experts = routes(scores, 40, 8, true).experts;
    EXPECT_EQ(experts, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  }
  EXPECT_EQ(routes({kNaN, 1, 2, kNaN}, 4, 2, true).experts, (std::vector<int32_t>{2, 1}));
}

TEST_P(ExpertsTest, ARowsRouteDoesNotDependOnOthers) {
  constexpr int64_t kRows = 19, kCount = 128, kUsed = 8;
  const std::vector<float> scores = random_values(3, kRows * kCount);
  const Routes all = routes(scores, kCount, kUsed, true);
  for (int64_t row = 0; row < kRows; ++row) {
    const auto begin = scores.begin() + row * kCount;
    const Routes one = routes({begin, begin + kCount}, kCount, kUsed, true);
    EXPECT_EQ(std::memcmp(one.shares.data(), all.shares.data() + row * kUsed, kUsed * sizeof(float)), 0) << row;
    EXPECT_EQ(std::memcmp(one.experts.data(), all.experts.data() + row * kUsed, kUsed * 4), 0) << row;
  }
}

TEST_P(ExpertsTest, PairsAreListedByExpertInOrder) {
  for (const int64_t pairs : {0, 1, 8, 24, 255, 256, 257, 4096}) {
    for (const auto& [count, shared] : {std::pair<int64_t, bool>{1, false}, {8, false}, {128, false}, {128, true}}) {
      const int64_t used = count == 128 ? 8 : 1;
      if (shared && pairs % used != 0) continue;
      std::vector<int32_t> experts(index_of(pairs));
      for (int64_t i = 0; i < pairs; ++i)  // the third expert has none
        experts[index_of(i)] = static_cast<int32_t>(i * i * 7 % count == 2 ? 0 : i * i * 7 % count);
      const auto [begin, places, from, present] = listed(experts, count, used, shared);
      const int64_t more = shared ? pairs / used : 0, all = count + (shared ? 1 : 0);  // rows, experts
      std::vector<int32_t> next, expected_begin = {0}, expected_present;
      for (int32_t e = 0; e < all; ++e) {
        next.push_back(expected_begin.back());
        const auto of_expert = e < count ? std::count(experts.begin(), experts.end(), e) : more;
        expected_begin.push_back(expected_begin.back() + static_cast<int32_t>(of_expert));
        if (expected_begin.back() > next.back()) expected_present.push_back(e);
      }
      expected_present.resize(index_of(std::min(pairs + more, all)), -1);
      EXPECT_EQ(present, expected_present) << pairs << " of " << count;
      EXPECT_EQ(begin, expected_begin) << pairs << " of " << count;
      for (int64_t i = 0; i < pairs; ++i) {
        ASSERT_EQ(places[index_of(i)], next[index_of(experts[index_of(i)])]++) << pairs << " of " << count;
        ASSERT_EQ(from[index_of(places[index_of(i)])], i / used) << pairs << " of " << count;
      }
      for (int64_t row = 0; row < more; ++row) ASSERT_EQ(from[index_of(pairs + row)], row) << pairs;
    }
  }
}

// Both steps at once: what route() and list_pairs() write, for few rows and for many.
TEST_P(ExpertsTest, ExpertsAreChosenAsByBothSteps) {
  struct Size {
    int64_t count, used;
  };
  for (const auto& [count, used] : {Size{8, 2}, {128, 8}, {5, 5}, {1, 1}, {1024, 32}, {33, 32}}) {
    for (const int64_t rows : {0, 1, 2, 31, 33, 64, 65, 100}) {
      const bool shared = rows % 2 == 1;
      std::vector<float> scores = random_values(static_cast<uint64_t>(rows + count), rows * count);
      for (size_t i = 0; i < scores.size(); i += 3) scores[i] = std::round(scores[i] * 4) / 4;  // some are equal
      const int64_t pairs = rows * used;
      const Routes expected = routes(scores, count, used, true);
      const Lists expected_lists = listed(expected.experts, count, used, shared);
      const DeviceArray in = upload_raw(scores), experts = output(index_of(pairs) * 4),
                        shares = output(index_of(pairs) * 4), begin = output(expected_lists.begin.size() * 4),
                        places = output(index_of(pairs) * 4), from = output(expected_lists.from.size() * 4),
                        present = output(expected_lists.present.size() * 4);
      choose_experts({.scores = in.as<float>(),
                      .experts = experts.as<int32_t>(),
                      .shares = shares.as<float>(),
                      .rows = rows,
                      .count = count,
                      .used = used,
                      .stride = count,
                      .normalise = true},
                     {.experts = experts.as<int32_t>(),
                      .begin = begin.as<int32_t>(),
                      .places = places.as<int32_t>(),
                      .pairs = pairs,
                      .count = count,
                      .used = used,
                      .from = from.as<int32_t>(),
                      .present = present.as<int32_t>(),
                      .shared = shared},
                     stream());
      const Routes got{download_raw<int32_t>(experts), download_raw<float>(shares)};
      const Lists got_lists{download_raw<int32_t>(begin), download_raw<int32_t>(places), download_raw<int32_t>(from),
                            download_raw<int32_t>(present)};
      EXPECT_EQ(got, expected) << rows << " rows, " << count << " experts";
      EXPECT_EQ(got_lists, expected_lists) << rows << " rows, " << count << " experts";
    }
  }
}

// More experts than a thread loads at once, and the order of their sum.
TEST_P(ExpertsTest, ManyExpertsAreAdded) {
  constexpr int64_t kRows = 3, kCols = 72;
  for (const int64_t used : {1, 7, 8, 9, 32}) {
    std::vector<int32_t> places(index_of(kRows * used));
    std::iota(places.rbegin(), places.rend(), 0);
    const std::vector<float> shares = random_values(5, kRows * used), y = random_values(2, kRows * used * kCols);
    const std::vector<float> x = random_values(3, kRows * kCols);
    const DeviceArray y_array = upload_raw(y), places_array = upload_raw(places), shares_array = upload_raw(shares),
                      sum = upload_raw(x);
    add_experts({.y = y_array.as<float>(),
                 .places = places_array.as<int32_t>(),
                 .shares = shares_array.as<float>(),
                 .residual = sum.data(),
                 .out = sum.data(),
                 .type = DType::kF32,
                 .y_type = DType::kF32,
                 .rows = kRows,
                 .used = used,
                 .cols = kCols},
                stream());
    std::vector<float> expected = x;
    for (int64_t i = 0; i < kRows * kCols; ++i) {
      float added = 0;
      for (int64_t r = 0; r < used; ++r) {
        const size_t pair = index_of(i / kCols * used + r);
        added = std::fma(shares[pair], y[index_of(places[pair] * kCols + i % kCols)], added);
      }
      expected[index_of(i)] += added;
    }
    EXPECT_EQ(download_raw<float>(sum), expected) << used;
  }
}

// A shared expert's output comes last, times the sigmoid of its gate.
TEST_P(ExpertsTest, ASharedOutputIsAdded) {
  constexpr int64_t kRows = 5, kUsed = 3, kStride = 7;
  std::vector<int32_t> places(index_of(kRows * kUsed));
  std::iota(places.rbegin(), places.rend(), 0);
  const std::vector<float> shares = random_values(5, kRows * kUsed);
  std::vector<float> gates = random_values(4, kRows * kStride, 4.0f);
  gates[0] = 200.0f, gates[index_of(kStride)] = -200.0f;  // 1 and 0
  const DeviceArray places_array = upload_raw(places), shares_array = upload_raw(shares),
                    gates_array = upload_raw(gates);
  for (const DType type : kAllTypes) {
    for (const int64_t cols : {1, 64, 2051}) {
      for (const DType shared_type : {type, DType::kF32}) {
        const std::vector<float> x = rounded(random_values(1, kRows * cols), type),
                                 y = random_values(2, kRows * kUsed * cols),
                                 of_shared = rounded(random_values(3, kRows * cols), shared_type);
        const DeviceArray y_array = upload_raw(y), shared_array = upload(of_shared, shared_type), sum = upload(x, type);
        add_experts({.y = y_array.data(),
                     .places = places_array.as<int32_t>(),
                     .shares = shares_array.as<float>(),
                     .residual = sum.data(),
                     .out = sum.data(),
                     .type = type,
                     .y_type = DType::kF32,
                     .rows = kRows,
                     .used = kUsed,
                     .cols = cols,
                     .shared = {shared_array.data(), shared_type, gates_array.as<float>(), kStride}},
                    stream());
        std::vector<double> expected, magnitudes;
        for (int64_t i = 0; i < kRows * cols; ++i) {
          const int64_t row = i / cols;
          double added = x[index_of(i)], magnitude = std::abs(added);
          const auto add = [&](double term) { added += term, magnitude += std::abs(term); };
          for (int64_t r = 0; r < kUsed; ++r) {
            const size_t pair = index_of(row * kUsed + r);
            add(static_cast<double>(shares[pair]) * y[index_of(places[pair] * cols + i % cols)]);
          }
          add(of_shared[index_of(i)] / (1 + std::exp(-static_cast<double>(gates[index_of(row * kStride)]))));
          expected.push_back(added);
          magnitudes.push_back(magnitude);
        }
        expect_close(download(sum, type), expected, magnitudes, type, str(dtype_name(type), " ", cols));
      }
    }
  }
}

TEST_P(ExpertsTest, ExpertsOutputsAreAdded) {
  constexpr int64_t kRows = 9, kUsed = 3;
  std::vector<int32_t> places;
  for (int32_t pair = 0; pair < kRows * kUsed; ++pair) places.push_back(pair * 5 % (kRows * kUsed));
  const std::vector<float> shares = random_values(5, kRows * kUsed);
  const DeviceArray places_array = upload_raw(places), shares_array = upload_raw(shares);
  for (const DType type : kAllTypes) {
    for (const int64_t cols : {1, 7, 64, 2048, 2051}) {
      const std::vector<float> x = rounded(random_values(1, kRows * cols), type);
      const DType y_type = cols % 2 == 0 ? DType::kF32 : type;
      const std::vector<float> y = rounded(random_values(2, kRows * kUsed * cols), y_type);
      const DeviceArray y_array = upload(y, y_type), sum = upload(x, type), alone = output(sum.bytes);
      for (const bool adds : {true, false}) {
        add_experts({.y = y_array.data(),
                     .places = places_array.as<int32_t>(),
                     .shares = shares_array.as<float>(),
                     .residual = adds ? sum.data() : nullptr,
                     .out = adds ? sum.data() : alone.data(),
                     .type = type,
                     .y_type = y_type,
                     .rows = kRows,
                     .used = kUsed,
                     .cols = cols},
                    stream());
      }
      const std::vector<float> got = download(sum, type);
      std::vector<float> expected = x, expected_alone(x.size());
      for (int64_t i = 0; i < kRows * cols; ++i) {
        float added = 0;
        for (int64_t r = 0; r < kUsed; ++r) {
          const size_t pair = index_of(i / cols * kUsed + r);
          added = std::fma(shares[pair], y[index_of(places[pair] * cols + i % cols)], added);
        }
        expected[index_of(i)] += added;
        expected_alone[index_of(i)] = added;
      }
      EXPECT_EQ(download(alone, type), rounded(expected_alone, type)) << dtype_name(type) << " " << cols;
      EXPECT_EQ(got, rounded(expected, type)) << dtype_name(type) << " " << cols;
    }
  }
}

}  // namespace
}  // namespace headrace
