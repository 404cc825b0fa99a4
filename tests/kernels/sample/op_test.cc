#include "kernels/sample/op.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sample/philox.h"
#include "tests/support/kernel_test.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// The vectors for philox4x32-10 that Random123, the authors' library, publishes: zeros, ones, and digits of pi.
TEST(Philox, KnownAnswers) {
  using Words = std::array<uint32_t, 4>;
  EXPECT_EQ(kernels::philox({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(kernels::philox({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(kernels::philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(SamplingUniform, IsUniformAndNeverZeroOrOne) {
  constexpr int kDraws = 1 << 20, kBins = 64;
  std::array<int, kBins> counts{};
  double sum = 0;
  for (int i = 0; i < kDraws; ++i) {
    const float u = sampling_uniform(42, i / 1024, i % 1024);
    ASSERT_GT(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++counts[static_cast<size_t>(u * kBins)];
    sum += u;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 / std::sqrt(12.0 * kDraws));
  double chi_square = 0;
  for (int count : counts) chi_square += std::pow(count - kDraws / kBins, 2) / (kDraws / kBins);
  EXPECT_LT(chi_square, 63 + 4 * std::sqrt(2 * 63.0));
}

TEST(SamplingUniform, DependsOnEveryBitOfSeedPositionAndToken) {
  const float base = sampling_uniform(1, 1, 1);
  for (int bit = 0; bit < 64; ++bit) EXPECT_NE(sampling_uniform(1 ^ uint64_t{1} << bit, 1, 1), base) << bit;
  for (int bit = 0; bit < 63; ++bit) EXPECT_NE(sampling_uniform(1, 1 ^ int64_t{1} << bit, 1), base) << bit;
  for (int bit = 0; bit < 31; ++bit) EXPECT_NE(sampling_uniform(1, 1, 1 ^ int32_t{1} << bit), base) << bit;
}

class SampleTest : public testing_support::KernelTest {
 protected:
  std::vector<int32_t> run(const std::vector<float>& logits, const std::vector<int32_t>& positions,
                           const SamplingSettings& settings);
  int32_t run_one(const std::vector<float>& logits, const SamplingSettings& settings, int32_t position = 0) {
    return run(logits, {position}, settings)[0];
  }
  // Draws at 1e5 positions and compares with the probabilities by a chi-square test.
  void expect_distribution(const std::vector<float>& logits, const SamplingSettings& settings,
                           const std::vector<double>& probabilities);
};
INSTANTIATE_KERNEL_TEST(SampleTest);

std::vector<int32_t> SampleTest::run(const std::vector<float>& logits, const std::vector<int32_t>& positions,
                                     const SamplingSettings& settings) {
  SampleParams params{};
  params.rows = static_cast<int64_t>(positions.size());
  params.vocab = static_cast<int64_t>(logits.size() / positions.size());
  const DeviceArray logits_array = upload_raw(logits), position_array = upload_raw(positions);
  const DeviceArray tokens = output(positions.size() * 4);
  const DeviceArray workspace = output(sample_workspace_bytes(params.rows, params.vocab));
  params.logits = logits_array.as<float>();
  params.positions = position_array.as<int32_t>();
  params.tokens = tokens.as<int32_t>();
  params.workspace = workspace.data();
  params.settings = settings;
  sample(params, stream());
  const std::vector<std::byte> bytes = download(tokens);
  download(workspace);  // its guards
  std::vector<int32_t> result(positions.size());
  std::memcpy(result.data(), bytes.data(), bytes.size());
  return result;
}

// ---- Log-probabilities of given tokens
// -------------------------------------------------------------------------------

TEST_P(SampleTest, LogProbabilityOfAToken) {
  constexpr int64_t kRows = 3;
  const auto log_probs = [&](const std::vector<float>& logits, const std::vector<int32_t>& tokens) {
    const DeviceArray from = upload_raw(logits), ids = upload_raw(tokens), to = output(tokens.size() * sizeof(float));
    token_log_probs({.logits = from.as<float>(),
                     .tokens = ids.as<int32_t>(),
                     .log_probs = to.as<float>(),
                     .rows = static_cast<int64_t>(tokens.size()),
                     .vocab = static_cast<int64_t>(logits.size() / tokens.size())},
                    stream());
    return download(to, DType::kF32);
  };
  for (const int64_t vocab : {1, 2, 63, 64, 1000, 4099, 49152}) {
    const auto logits = testing_support::random_values(static_cast<uint64_t>(vocab), kRows * vocab, 2.0f);
    const std::vector<int32_t> tokens = {0, static_cast<int32_t>(vocab / 2), static_cast<int32_t>(vocab - 1)};
    const std::vector<float> actual = log_probs(logits, tokens);
    for (int64_t row = 0; row < kRows; ++row) {
      double sum = 0;
      const float* const values = logits.data() + row * vocab;
      for (int64_t i = 0; i < vocab; ++i) sum += std::exp(static_cast<double>(values[i]));
      const auto at = static_cast<size_t>(row);
      const double expected = static_cast<double>(values[tokens[at]]) - std::log(sum);
      EXPECT_NEAR(static_cast<double>(actual[at]), expected, 1e-6 * (1 - expected)) << vocab << ", row " << row;
      EXPECT_LE(actual[at], 0.0f);
    }
  }
  EXPECT_EQ(log_probs({-kInfinity, 2, 2, -kInfinity}, {0})[0], -kInfinity);
  EXPECT_NEAR(static_cast<double>(log_probs({-kInfinity, 2, 2, -kInfinity}, {1})[0]), -std::log(2.0), 1e-6);
  for (const float bad : {kNan, kInfinity}) EXPECT_TRUE(std::isnan(log_probs({0, 1, bad, 1}, {1})[0])) << bad;
  EXPECT_TRUE(std::isnan(log_probs({-kInfinity, -kInfinity}, {0})[0]));
  EXPECT_TRUE(std::isnan(log_probs({0, 1, 2}, {kNanLogit})[0]));
}

// ---- T = 0 ----------------------------------------------------------------------------------------------------------

TEST_P(SampleTest, GreedyIsTheArgmax) {
  for (int64_t vocab : {1, 2, 15, 16, 17, 63, 64, 65, 1000, 49152}) {
    std::vector<float> logits = testing_support::random_values(static_cast<uint64_t>(vocab), 3 * vocab);
    const auto tokens = run(logits, {5, 6, 7}, {});
    for (int64_t row = 0; row < 3; ++row) {
      const auto begin = logits.begin() + row * vocab;
      EXPECT_EQ(tokens[static_cast<size_t>(row)], std::max_element(begin, begin + vocab) - begin) << vocab;
    }
  }
}

TEST_P(SampleTest, GreedyFindsEveryPlace) {
  for (size_t vocab : {37, 130, 4099}) {
    for (size_t place = 0; place < vocab; place += vocab >= 1000 ? 61 : testing::kSanitized ? 7 : 1) {
      std::vector<float> logits(vocab, -3.0f);
      logits[place] = -2.0f;
      EXPECT_EQ(run_one(logits, {}), static_cast<int32_t>(place));
      logits.back() = -2.0f;  // a tie
      EXPECT_EQ(run_one(logits, {}), static_cast<int32_t>(place));
    }
  }
}

TEST_P(SampleTest, ARowThatIsNotFiniteHasNoToken) {
  for (float temperature : {0.0f, 1.0f}) {
    SamplingSettings settings;
    settings.temperature = temperature;
    for (int filters = 0; filters < 2; ++filters) {
      EXPECT_EQ(run_one({kNan, kNan, kNan}, settings), kNanLogit);
      EXPECT_EQ(run_one({kNan, kInfinity, -5.0f, 3.0f}, settings), kNanLogit);
      EXPECT_EQ(run_one({-kNan, -kInfinity, -5.0f}, settings), kNanLogit);
      EXPECT_EQ(run_one({1.0f, kInfinity, -kInfinity, 3.0f}, settings), kInfiniteLogit);
      EXPECT_EQ(run_one({-kInfinity, -kInfinity}, settings), kNoFiniteLogit);
      EXPECT_EQ(run_one({-3e38f, 3e38f, -kInfinity}, settings), 1);  // that is finite
      EXPECT_EQ(run_one({-3.4e38f, -kInfinity}, settings), 0);
      settings.top_k = 2;
      settings.top_p = 0.9f;
      settings.min_p = 0.1f;
    }
  }
}

// Wherever it is, and in no other row than its own.
TEST_P(SampleTest, OneValueThatIsNotFiniteIsFound) {
  const std::vector<int32_t> positions = {3, 4, 5};
  for (size_t vocab : {size_t{37}, size_t{4099}, size_t{20000}}) {
    const std::vector<float> good = testing_support::random_values(vocab, static_cast<int64_t>(3 * vocab));
    for (float temperature : {0.0f, 0.8f}) {
      SamplingSettings settings;
      settings.temperature = temperature;
      const std::vector<int32_t> expected = run(good, positions, settings);
      for (size_t place = 0; place < vocab; place += vocab < 100 ? 1 : vocab / 11) {
        for (const auto& [value, what] : {std::pair{kNan, kNanLogit}, std::pair{kInfinity, kInfiniteLogit}}) {
          std::vector<float> logits = good;
          logits[vocab + place] = value;
          EXPECT_EQ(run(logits, positions, settings), (std::vector<int32_t>{expected[0], what, expected[2]}))
              << place << " of " << vocab;
        }
      }
    }
  }
}

// ---- The distribution -----------------------------------------------------------------------------------------------

std::vector<double> softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p;
  for (float logit : logits) p.push_back(std::exp(logit / temperature));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (double& value : p) value /= total;
  return p;
}

std::vector<double> renormalised(std::vector<double> p, const std::vector<size_t>& kept) {
  std::vector<double> result(p.size());
  double total = 0;
  for (size_t id : kept) total += p[id];
  for (size_t id : kept) result[id] = p[id] / total;
  return result;
}

// Logits of 24 tokens; by likelihood they are 7, 0, 12, 3, …
std::vector<float> some_logits() {
  std::vector<float> logits(24);
  for (size_t i = 0; i < logits.size(); ++i) logits[(7 + i * 17) % 24] = 3.0f - 0.25f * static_cast<float>(i);
  return logits;
}

std::vector<size_t> likeliest(size_t count) {
  std::vector<size_t> ids;
  for (size_t i = 0; i < count; ++i) ids.push_back((7 + i * 17) % 24);
  return ids;
}

void SampleTest::expect_distribution(const std::vector<float>& logits, const SamplingSettings& settings,
                                     const std::vector<double>& probabilities) {
  constexpr size_t kDraws = 100000;
  std::vector<float> rows;
  std::vector<int32_t> positions(kDraws);
  for (size_t i = 0; i < kDraws; ++i) rows.insert(rows.end(), logits.begin(), logits.end());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<double> counts(logits.size());
  for (int32_t token : run(rows, positions, settings)) ++counts[static_cast<size_t>(token)];
  double chi_square = 0, freedom = -1;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * kDraws;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0) << "token " << i << " should have been filtered out";
      continue;
    }
    ASSERT_GT(expected, 20) << "too rare for a chi-square test";
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    ++freedom;
  }
  // Four standard deviations, and as many of luck; the seeds are fixed, so that this passes always or never.
  EXPECT_LT(chi_square, freedom + 4 * std::sqrt(2 * freedom) + 8) << freedom << " degrees of freedom";
}

SamplingSettings at_temperature(float temperature, uint64_t seed) {
  SamplingSettings settings;
  settings.temperature = temperature;
  settings.seed = seed;
  return settings;
}

TEST_P(SampleTest, DistributionIsTheSoftmax) {
  for (float temperature : {0.9f, 1.0f, 3.0f}) {
    expect_distribution(some_logits(), at_temperature(temperature, 1), softmax(some_logits(), temperature));
  }
}

TEST_P(SampleTest, TopK) {
  SamplingSettings settings = at_temperature(1.0f, 2);
  for (int32_t k : {1, 2, 5, 24, 100}) {
    settings.top_k = k;
    const auto p = softmax(some_logits(), 1.0);
    expect_distribution(some_logits(), settings,
                        renormalised(p, likeliest(std::min<size_t>(24, static_cast<size_t>(k)))));
  }
}

TEST_P(SampleTest, TopP) {
  SamplingSettings settings = at_temperature(1.0f, 3);
  const auto p = softmax(some_logits(), 1.0);
  for (size_t count : {1, 2, 6, 12}) {
    double below = 0;  // of the count - 1 likeliest; the next one takes the sum over the threshold
    for (size_t i = 0; i + 1 < count; ++i) below += p[likeliest(24)[i]];
    settings.top_p = static_cast<float>(below + 0.3 * p[likeliest(24)[count - 1]]);
    expect_distribution(some_logits(), settings, renormalised(p, likeliest(count)));
  }
}

// The temperature comes before the filters, and top-p counts what top-k has left.
TEST_P(SampleTest, FiltersInOrder) {
  SamplingSettings settings = at_temperature(2.0f, 4);
  const auto p = softmax(some_logits(), 2.0);
  settings.top_k = 4;
  const auto of_four = renormalised(p, likeliest(4));
  settings.top_p = static_cast<float>(of_four[likeliest(4)[0]] + 0.5 * of_four[likeliest(4)[1]]);
  expect_distribution(some_logits(), settings, renormalised(p, likeliest(2)));
  settings.top_p = 0.999f;
  settings.min_p = static_cast<float>(p[likeliest(24)[2]] / p[likeliest(24)[0]] * 0.99);
  expect_distribution(some_logits(), settings, renormalised(p, likeliest(3)));
}

TEST_P(SampleTest, MinP) {
  SamplingSettings settings = at_temperature(1.0f, 5);
  const auto p = softmax(some_logits(), 1.0);
  for (size_t count : {1, 3, 9}) {
    settings.min_p = static_cast<float>(p[likeliest(24)[count - 1]] / p[likeliest(24)[0]] * 0.99);
    expect_distribution(some_logits(), settings, renormalised(p, likeliest(count)));
  }
}

// Where several tokens are as likely as the one at the border, the lower ids stay.
TEST_P(SampleTest, TiesAtTheBorder) {
  const std::vector<float> logits = {0, 1, 1, 2, 1, 1, 0};
  SamplingSettings settings = at_temperature(1.0f, 6);
  settings.top_k = 3;
  expect_distribution(logits, settings, renormalised(softmax(logits, 1.0), {1, 2, 3}));
  settings.top_k = 0;
  const auto p = softmax(logits, 1.0);
  settings.top_p = static_cast<float>(p[3] + 2.5 * p[1]);
  expect_distribution(logits, settings, renormalised(p, {1, 2, 3, 4}));
  settings.top_p = 0.5f;  // all equal: half of them, the lower ids
  expect_distribution(std::vector<float>(8, 4.0f), settings, renormalised(std::vector<double>(8, 0.125), {0, 1, 2, 3}));
}

// The rarest tokens of a large vocabulary are drawn as often as they should be: 2^17 of them share 1%.
TEST_P(SampleTest, RareTokensKeepTheirShare) {
  constexpr size_t kVocab = 1 << (testing::kSanitized ? 14 : 17), kDraws = 1000;
  std::vector<float> logits(kVocab, 0.0f);
  logits[12345] = std::log(99.0f * (kVocab - 1));
  int rare = 0;
  for (size_t i = 0; i < kDraws; ++i) {
    rare += run_one(logits, at_temperature(1.0f, 8), static_cast<int32_t>(i)) != 12345;
  }
  EXPECT_GE(rare, 3);
  EXPECT_LE(rare, 20);
}

// ---- A pure function ------------------------------------------------------------------------------------------------

// The rule itself, with a sort and in plain steps.
int32_t plain_sample(const float* logits, size_t vocab, int32_t position, const SamplingSettings& settings) {
  const float top = *std::max_element(logits, logits + vocab), inverse = 1.0f / settings.temperature;
  const auto gap = [&](size_t id) { return (top - logits[id]) * inverse; };
  std::vector<size_t> ids(vocab);
  std::iota(ids.begin(), ids.end(), size_t{0});
  std::stable_sort(ids.begin(), ids.end(), [&](size_t a, size_t b) { return gap(a) < gap(b); });
  if (settings.top_k > 0) ids.resize(std::min(vocab, static_cast<size_t>(settings.top_k)));
  if (settings.top_p < 1) {
    double total = 0, sum = 0;
    for (size_t id : ids) total += std::exp(-static_cast<double>(gap(id)));
    size_t count = 0;
    while (count < ids.size() && sum < settings.top_p * total) sum += std::exp(-static_cast<double>(gap(ids[count++])));
    ids.resize(count);
  }
  std::sort(ids.begin(), ids.end());
  size_t best = 0;
  float best_score = -kInfinity;
  for (size_t id : ids) {
    if (std::exp(-gap(id)) < settings.min_p) continue;
    const float score =
        -std::log(-std::log1p(-sampling_uniform(settings.seed, position, static_cast<int32_t>(id)))) - gap(id);
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return static_cast<int32_t>(best);
}

TEST_P(SampleTest, EqualsThePlainRule) {
  std::mt19937 random(1);
  for (int i = 0; i < 400; ++i) {
    const size_t vocab = 1 + random() % 3000;
    std::vector<float> logits = testing_support::random_values(random(), static_cast<int64_t>(vocab), 2.0f);
    if (i % 3 == 0) {
      for (float& logit : logits) logit = std::round(logit);  // ties
    }
    SamplingSettings settings = at_temperature(0.3f + 0.2f * static_cast<float>(random() % 10), random());
    if (i % 2 == 0) settings.top_k = 1 + static_cast<int32_t>(random() % 60);
    if (i % 5 != 0) settings.top_p = 0.05f * static_cast<float>(1 + random() % 19);
    if (i % 7 == 0) settings.min_p = 0.113f;
    const auto position = static_cast<int32_t>(random() % 100000);
    EXPECT_EQ(run_one(logits, settings, position), plain_sample(logits.data(), vocab, position, settings))
        << "case " << i << ": vocabulary of " << vocab;
  }
}

TEST_P(SampleTest, SameTokenInEveryRowAmongAnyNeighbours) {
  constexpr int64_t kRows = 64, kVocab = 777;
  const std::vector<float> logits = testing_support::random_values(3, kRows * kVocab, 2.0f);
  for (int filters = 0; filters < 2; ++filters) {
    SamplingSettings settings = at_temperature(1.5f, 99);
    if (filters == 1) {
      settings.top_k = 50;
      settings.top_p = 0.9f;
      settings.min_p = 0.01f;
    }
    std::vector<int32_t> positions(kRows);
    std::iota(positions.begin(), positions.end(), 1000);
    const std::vector<int32_t> tokens = run(logits, positions, settings);
    for (size_t row = 0; row < kRows; ++row) {
      const auto begin = logits.begin() + static_cast<int64_t>(row) * kVocab;
      EXPECT_EQ(run_one({begin, begin + kVocab}, settings, positions[row]), tokens[row]);
    }
    std::vector<float> reversed;
    for (int64_t row = kRows - 1; row >= 0; --row) {
      reversed.insert(reversed.end(), logits.begin() + row * kVocab, logits.begin() + (row + 1) * kVocab);
    }
    std::reverse(positions.begin(), positions.end());
    std::vector<int32_t> back = run(reversed, positions, settings);
    std::reverse(back.begin(), back.end());
    EXPECT_EQ(back, tokens);
    open(1);
    EXPECT_EQ(run(reversed, positions, settings), std::vector<int32_t>(tokens.rbegin(), tokens.rend()));
    open(2);
  }
}

TEST_P(SampleTest, SeedAndPositionMatter) {
  const std::vector<float> logits(1000, 0.0f);
  std::vector<int32_t> seen;
  for (uint64_t seed : {0, 1, 2}) {
    for (int32_t position : {0, 1, 2}) seen.push_back(run_one(logits, at_temperature(1.0f, seed), position));
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
}

TEST_P(SampleTest, TinyTemperatureIsTheArgmaxAndHugeIsUniform) {
  std::vector<float> logits = testing_support::random_values(3, 5000);
  logits[4000] = 100.0f;
  EXPECT_EQ(run_one(logits, at_temperature(1e-30f, 1)), 4000);
  EXPECT_EQ(run_one(logits, at_temperature(std::numeric_limits<float>::denorm_min(), 1)), 4000);
  expect_distribution(some_logits(), at_temperature(1e30f, 7), std::vector<double>(24, 1.0 / 24));
}

}  // namespace
}  // namespace headrace
