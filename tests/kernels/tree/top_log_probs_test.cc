#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/sample/op.h"
#include "kernels/tree/op.h"
#include "tests/support/golden.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

struct Top {
  std::vector<float> log_probs;
  std::vector<int32_t> tokens;
};

struct Case {
  std::vector<float> logits;  // [rows, stride]
  int64_t rows = 1, vocab = 0, k = 1;
  int64_t stride = 0;          // 0: vocab
  std::vector<int32_t> map{};  // empty: none
  std::vector<int32_t> positions{};
  int64_t position_offset = 0;
  float temperature = 0;
  uint64_t seed = 0;
};

// What is ranked, in double; -inf for what is never chosen.
std::vector<double> plain_values(const Case& c, int64_t row) {
  std::vector<double> values;
  const int64_t stride = c.stride == 0 ? c.vocab : c.stride;
  for (int64_t id = 0; id < c.vocab; ++id) {
    const float logit = c.logits[static_cast<size_t>(row * stride + id)];
    double value = std::isnan(logit) ? -kInfinity : std::min(logit, std::numeric_limits<float>::max());
    if (c.temperature > 0) {
      const int32_t token = c.map.empty() ? static_cast<int32_t>(id) : c.map[static_cast<size_t>(id)];
      const int64_t position = c.positions[static_cast<size_t>(row)] + c.position_offset;
      value = value / c.temperature + -std::log(-std::log1p(-sampling_uniform(c.seed, position, token)));
    }
    values.push_back(value);
  }
  return values;
}

double log_sum(const std::vector<double>& values) {
  const double top = *std::max_element(values.begin(), values.end());
  double sum = 0;
  for (double value : values) sum += std::exp(value - top);
  return top + std::log(sum);
}

class TopLogProbsTest : public testing_support::KernelTest {
 protected:
  Top run(const Case& c);
  std::vector<int32_t> sampled(const Case& c);  // by the sampler, a token a row
  void expect_right(const Case& c, const std::string& what);
};
INSTANTIATE_KERNEL_TEST(TopLogProbsTest);

Top TopLogProbsTest::run(const Case& c) {
  TopLogProbsParams params{};
  params.rows = c.rows;
  params.vocab = c.vocab;
  params.stride = c.stride == 0 ? c.vocab : c.stride;
  params.k = c.k;
  params.position_offset = c.position_offset;
  params.temperature = c.temperature;
  params.seed = c.seed;
  const auto count = static_cast<size_t>(c.rows * c.k);
  const DeviceArray logits = upload_raw(c.logits), map = upload_raw(c.map), positions = upload_raw(c.positions);
  const DeviceArray log_probs = output(count * 4), tokens = output(count * 4);
  const DeviceArray workspace = output(top_log_probs_workspace_bytes(c.rows, c.vocab, c.k));
  params.logits = logits.as<float>();
  params.map = c.map.empty() ? nullptr : map.as<int32_t>();
  params.positions = c.positions.empty() ? nullptr : positions.as<int32_t>();
  params.log_probs = log_probs.as<float>();
  params.tokens = tokens.as<int32_t>();
  params.workspace = workspace.data();
  top_log_probs(params, stream());
  Top top{download(log_probs, DType::kF32), std::vector<int32_t>(count)};
  const std::vector<std::byte> bytes = download(tokens);
  std::memcpy(top.tokens.data(), bytes.data(), bytes.size());
  download(workspace);  // its guards
  return top;
}

std::vector<int32_t> TopLogProbsTest::sampled(const Case& c) {
  std::vector<int32_t> positions = c.positions;
  for (int32_t& position : positions) position += static_cast<int32_t>(c.position_offset);
  const DeviceArray logits = upload_raw(c.logits), position_array = upload_raw(positions);
  const DeviceArray tokens = output(positions.size() * 4), workspace = output(sample_workspace_bytes(c.rows, c.vocab));
  SampleParams params{};
  params.logits = logits.as<float>();
  params.positions = position_array.as<int32_t>();
  params.tokens = tokens.as<int32_t>();
  params.workspace = workspace.data();
  params.rows = c.rows;
  params.vocab = c.vocab;
  params.settings.temperature = c.temperature;
  params.settings.seed = c.seed;
  sample(params, stream());
  const std::vector<std::byte> bytes = download(tokens);
  std::vector<int32_t> result(positions.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

// Values against the reference's, tokens exactly: without noise what is ranked are the logits themselves.
void TopLogProbsTest::expect_right(const Case& c, const std::string& what) {
  const Top top = run(c);
  for (int64_t row = 0; row < c.rows; ++row) {
    const std::vector<double> values = plain_values(c, row);
    std::vector<int32_t> ids(values.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
      return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
    });
    const double sum = log_sum(values);
    for (int64_t i = 0; i < c.k; ++i) {
      const auto at = static_cast<size_t>(row * c.k + i);
      const int32_t id = ids[static_cast<size_t>(i)];
      ASSERT_EQ(top.tokens[at], c.map.empty() ? id : c.map[static_cast<size_t>(id)])
          << what << ": row " << row << ", rank " << i;
      const double expected = values[static_cast<size_t>(id)] - sum;
      if (values[static_cast<size_t>(id)] == -kInfinity) {
        ASSERT_EQ(top.log_probs[at], -kInfinity) << what;
      } else {
        ASSERT_NEAR(top.log_probs[at], expected, 2e-6 * (1 + std::fabs(expected))) << what << ": rank " << i;
      }
      ASSERT_LE(top.log_probs[at], 0.0f) << what;
      ASSERT_TRUE(i == 0 || top.log_probs[at] <= top.log_probs[at - 1]) << what;
    }
  }
}

TEST_P(TopLogProbsTest, EverySizeOfVocabulary) {
  for (int64_t vocab : {int64_t{1}, int64_t{2}, int64_t{10}, int64_t{63}, int64_t{64}, int64_t{65}, int64_t{513},
                        int64_t{4095}, int64_t{4096}, int64_t{4097}, int64_t{8192}, int64_t{12289}, int64_t{32000},
                        int64_t{128256}, int64_t{262144}, int64_t{262208}, kMaxTopVocab}) {
    if (testing::kSanitized && vocab > 32000) break;
    for (int64_t k : {1, 4, 10, 50, 64}) {
      if (k > vocab) continue;
      const int64_t rows = vocab < 10000 ? 3 : 1;
      Case c{.logits = testing_support::random_values(static_cast<uint64_t>(vocab + k), rows * vocab, 3.0f)};
      c.rows = rows;
      c.vocab = vocab;
      c.k = k;
      expect_right(c, str("vocabulary of ", vocab, ", k = ", k));
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(TopLogProbsTest, ManyRowsStrideAndMap) {
  for (int64_t rows : {2, 10, 50, 64}) {
    if (testing::kSanitized && rows > 10) break;
    Case c{.logits = testing_support::random_values(static_cast<uint64_t>(rows), rows * 8200, 2.0f)};
    c.rows = rows;
    c.vocab = 8191;
    c.stride = 8200;
    c.k = 10;
    // What lies beyond the vocabulary is larger than anything in it.
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = c.vocab; i < c.stride; ++i) c.logits[static_cast<size_t>(row * c.stride + i)] = 1e6f;
    }
    for (int32_t id = 0; id < c.vocab; ++id) c.map.push_back(id * 3 + id % 2);
    expect_right(c, str(rows, " rows"));
  }
}

// Ties go to the lower id: few different logits, all equal ones, and one that repeats from part to part.
TEST_P(TopLogProbsTest, Ties) {
  std::mt19937 random(5);
  for (int64_t vocab : {64, 1000, 4097, 20000}) {
    for (int kinds : {1, 2, 5, 40}) {
      Case c{.logits = std::vector<float>(static_cast<size_t>(2 * vocab))};
      for (float& logit : c.logits) logit = static_cast<float>(random() % static_cast<unsigned>(kinds)) - 3.0f;
      c.rows = 2;
      c.vocab = vocab;
      for (int64_t k : {1, 10, 64}) {
        c.k = k;
        expect_right(c, str("vocabulary of ", vocab, " with ", kinds, " different logits, k = ", k));
      }
    }
    Case c{.logits = std::vector<float>(static_cast<size_t>(vocab), -1.0f)};
    for (size_t id = 37; id < c.logits.size(); id += 401) c.logits[id] = 2.0f;
    c.logits[c.logits.size() - 1] = 3.0f;
    c.vocab = vocab;
    c.k = 64;
    expect_right(c, str("vocabulary of ", vocab, " with one logit that repeats"));
  }
}

TEST_P(TopLogProbsTest, ZeroHasOneSign) {
  Case c{.logits = {-0.0f, 0.0f, -1.0f, 0.0f, -0.0f}};
  c.vocab = 5;
  c.k = 5;
  EXPECT_EQ(run(c).tokens, (std::vector<int32_t>{0, 1, 3, 4, 2}));
}

TEST_P(TopLogProbsTest, NanAndInfinity) {
  Case c;
  c.vocab = 5000;
  c.k = 10;
  c.logits.assign(5000, kNan);
  expect_right({.logits = {kNan, 1.0f, -kInfinity, 3.0f, kNan}, .vocab = 5, .k = 5}, "a few");
  Top top = run(c);  // nothing to choose
  for (int32_t i = 0; i < 10; ++i) {
    EXPECT_EQ(top.tokens[static_cast<size_t>(i)], i);
    EXPECT_EQ(top.log_probs[static_cast<size_t>(i)], -kInfinity);
  }
  c.logits[4500] = 2.0f;  // one
  c.logits[7] = -kInfinity;
  top = run(c);
  EXPECT_EQ(top.tokens, (std::vector<int32_t>{4500, 0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(top.log_probs[0], 0.0f);
  EXPECT_EQ(top.log_probs[1], -kInfinity);
  c.logits[4000] = c.logits[4700] = kInfinity;  // the largest float, twice
  top = run(c);
  EXPECT_EQ(top.tokens[0], 4000);
  EXPECT_EQ(top.tokens[1], 4700);
  EXPECT_NEAR(top.log_probs[0], std::log(0.5), 1e-6);
  EXPECT_EQ(top.log_probs[0], top.log_probs[1]);
  EXPECT_EQ(top.tokens[2], 4500);
  c.temperature = 0.01f;
  c.positions = {3};
  top = run(c);
  EXPECT_EQ(std::min(top.tokens[0], top.tokens[1]), 4000);
  EXPECT_EQ(top.tokens[2], 4500);
  EXPECT_EQ(top.log_probs[3], -kInfinity);
}

// With the sampler's noise the likeliest is the token that the sampler would draw from these logits.
TEST_P(TopLogProbsTest, NoiseIsTheSamplers) {
  constexpr int64_t kRows = 5;
  for (const int64_t vocab : {1, 7, 70, 515, 9001}) {
    Case c{.logits = testing_support::random_values(11, kRows * vocab, 2.0f)};
    c.rows = kRows;
    c.vocab = vocab;
    c.k = std::min<int64_t>(20, vocab);
    c.temperature = 0.8f;
    c.seed = 0x123456789abcdef0;
    c.positions = {100, 7, 31000, 7, 0};
    c.position_offset = 2;
    const std::vector<int32_t> drawn = sampled(c);
    for (int mapped = 0; mapped < 2; ++mapped) {
      for (int32_t id = 0; mapped == 1 && id < vocab; ++id) c.map.push_back(2 * id + id / 1000);
      const Top top = run(c);
      for (int64_t row = 0; row < kRows; ++row) {
        const std::vector<double> values = plain_values(c, row);
        std::vector<double> sorted = values;
        std::sort(sorted.begin(), sorted.end(), std::greater<>());
        const double sum = log_sum(values);
        if (mapped == 0) {
          EXPECT_EQ(top.tokens[static_cast<size_t>(row * c.k)], drawn[static_cast<size_t>(row)]);
        }
        for (int64_t i = 0; i < c.k; ++i) {
          const auto at = static_cast<size_t>(row * c.k + i);
          const auto id =
              mapped == 0 ? top.tokens[at] : std::find(c.map.begin(), c.map.end(), top.tokens[at]) - c.map.begin();
          ASSERT_GE(id, 0);
          ASSERT_LT(id, vocab);
          // Two libraries' logarithms may swap two values that are all but equal.
          EXPECT_NEAR(top.log_probs[at], values[static_cast<size_t>(id)] - sum, 2e-5);
          EXPECT_NEAR(values[static_cast<size_t>(id)], sorted[static_cast<size_t>(i)], 2e-5);
        }
        std::vector<int32_t> ids(top.tokens.begin() + row * c.k, top.tokens.begin() + (row + 1) * c.k);
        std::sort(ids.begin(), ids.end());
        EXPECT_EQ(std::adjacent_find(ids.begin(), ids.end()), ids.end()) << "a token twice";
      }
    }
  }
}

// A row's bits do not depend on its place, its neighbours or the number of threads.
TEST_P(TopLogProbsTest, SameBitsInEveryRow) {
  constexpr int64_t kRows = 13, kVocab = 9000;
  Case all{.logits = testing_support::random_values(3, kRows * kVocab, 2.0f)};
  all.rows = kRows;
  all.vocab = kVocab;
  all.k = 10;
  all.seed = 4;
  all.positions.resize(kRows);
  std::iota(all.positions.begin(), all.positions.end(), 50);
  for (float temperature : {0.0f, 1.2f}) {
    all.temperature = temperature;
    const Top together = run(all);
    open(1);
    for (int64_t row = 0; row < kRows; ++row) {
      Case one = all;
      one.rows = 1;
      one.logits.assign(all.logits.begin() + row * kVocab, all.logits.begin() + (row + 1) * kVocab);
      one.positions.assign(1, all.positions[static_cast<size_t>(row)]);
      const Top alone = run(one);
      for (size_t i = 0; i < 10; ++i) {
        const size_t at = static_cast<size_t>(row) * 10 + i;
        EXPECT_EQ(alone.tokens[i], together.tokens[at]);
        EXPECT_EQ(std::memcmp(&alone.log_probs[i], &together.log_probs[at], 4), 0) << row << " " << i;
      }
    }
    open(2);
  }
}

// The golden EAGLE-3 head's own first level. Its draft ids are not in the file; the map to the target's is increasing,
// so that both are in the same order.
TEST_P(TopLogProbsTest, GoldenFirstLevel) {
  const auto golden = testing::read_golden(HEADRACE_TEST_DATA "/eagle3/golden/tree.safetensors");
  Case c{.logits = golden.floats.at("draft_log_probs_last")};
  c.vocab = static_cast<int64_t>(c.logits.size());
  c.k = 10;
  const Top top = run(c);
  const auto order = [](const std::vector<int32_t>& ids) {
    std::vector<size_t> places(ids.size());
    std::iota(places.begin(), places.end(), size_t{0});
    std::sort(places.begin(), places.end(), [&](size_t a, size_t b) { return ids[a] < ids[b]; });
    return places;
  };
  EXPECT_EQ(order(top.tokens), order(golden.ids("top10_tokens")));
  const std::vector<float>& expected = golden.floats.at("top10_log_probs");
  for (size_t i = 0; i < 10; ++i) {
    EXPECT_NEAR(top.log_probs[i], expected[i], 1e-5);
    EXPECT_EQ(c.logits[static_cast<size_t>(top.tokens[i])], expected[i]);
  }
}

}  // namespace
}  // namespace headrace
