#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/sample/op.h"
#include "tests/support/kernel_test.h"

namespace headrace {
namespace {

using testing_support::DeviceArray;

class AdjustTest : public testing_support::KernelTest {
 protected:
  static constexpr float kInf = std::numeric_limits<float>::infinity();
};
INSTANTIATE_KERNEL_TEST(AdjustTest);

// Each logit by itself, with the bits of plain arithmetic.
TEST_P(AdjustTest, MasksWhatMayNotFollow) {
  for (const int64_t vocab : {1, 31, 32, 33, 1000, 4099, 49152}) {
    constexpr int64_t kRows = 4;
    const int64_t words = ceil_div(vocab, 32);
    std::mt19937_64 random(static_cast<uint64_t>(vocab));
    std::vector<float> logits = testing_support::random_values(9, kRows * vocab, 2.0f);
    logits[0] = std::numeric_limits<float>::quiet_NaN();
    logits[static_cast<size_t>(vocab) - 1] = kInf;
    std::vector<uint32_t> masks(static_cast<size_t>(3 * words));
    for (uint32_t& word : masks) word = random() % 4 == 0 ? ~uint32_t{0} : static_cast<uint32_t>(random());
    const std::vector<int32_t> mask_rows = {2, -1, 0, 2};
    const DeviceArray array = upload_raw(logits), mask_array = upload_raw(masks), rows_array = upload_raw(mask_rows);
    mask_logits({.logits = array.as<float>(),
                 .masks = mask_array.as<uint32_t>(),
                 .mask_rows = rows_array.as<int32_t>(),
                 .rows = kRows,
                 .vocab = vocab},
                stream());
    const std::vector<float> actual = download(array, DType::kF32);
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t token = 0; token < vocab; ++token) {
        const auto at = static_cast<size_t>(row * vocab + token);
        const int32_t mask = mask_rows[static_cast<size_t>(row)];
        const bool may = mask < 0 || (masks[static_cast<size_t>(mask * words + token / 32)] >> (token % 32) & 1) != 0;
        const float expected = may || !(logits[at] < kInf) ? logits[at] : -kInf;
        ASSERT_EQ(std::memcmp(&actual[at], &expected, 4), 0) << vocab << ", row " << row << ", token " << token;
      }
    }
  }
}

// A text that is cut elsewhere, more of it in the tree and less before, has the same bits.
TEST_P(AdjustTest, PenaltiesDependOnTheTextAlone) {
  constexpr int64_t kVocab = 5000;
  const std::vector<int32_t> prompt = {3, 7, 7, 4999}, text = {7, 11, 4096, 11, 11, 4999, 12, 0, 7, 11};
  const std::vector<PenaltySettings> all = {{.presence = 0.7f},
                                            {.frequency = 0.3f},
                                            {.repetition = 1.3f},
                                            {.presence = -1.1f, .frequency = 0.17f, .repetition = 0.9f}};
  for (const PenaltySettings& settings : all) {
    const std::vector<float> logits = testing_support::random_values(5, kVocab, 3.0f);
    std::vector<float> expected = logits;
    for (int64_t token = 0; token < kVocab; ++token) {
      const auto count = static_cast<float>(std::count(text.begin(), text.end(), token));
      const bool in_prompt = std::count(prompt.begin(), prompt.end(), token) > 0;
      float& x = expected[static_cast<size_t>(token)];
      if (count == 0 && !in_prompt) continue;
      x = x > 0 ? x / settings.repetition : x * settings.repetition;
      const volatile float many = settings.frequency * count;
      x = x - many;
      if (count > 0) x = x - settings.presence;
    }
    for (size_t cut = 0; cut <= text.size(); ++cut) {
      std::vector<int32_t> counts(kVocab);
      for (const int32_t token : prompt) counts[static_cast<size_t>(token)] = kInPrompt;
      for (size_t i = 0; i < cut; ++i) ++counts[static_cast<size_t>(text[i])];
      // A node beside the way after each of its nodes, which no row has.
      std::vector<int32_t> tokens, parents;
      int32_t last = -1;
      for (size_t i = cut; i < text.size(); ++i) {
        tokens.insert(tokens.end(), {text[i], 42});
        parents.insert(parents.end(), {last, last});
        last = static_cast<int32_t>(tokens.size()) - 2;
      }
      tokens.push_back(-1);  // a token that there is not
      parents.push_back(last);
      std::vector<float> both = logits;
      both.insert(both.end(), logits.begin(), logits.end());
      const std::vector<int32_t> leaves = {last, static_cast<int32_t>(tokens.size()) - 1};
      const DeviceArray array = upload_raw(both), count_array = upload_raw(counts), token_array = upload_raw(tokens),
                        parent_array = upload_raw(parents), leaf_array = upload_raw(leaves);
      penalize_logits({.logits = array.as<float>(),
                       .counts = count_array.as<int32_t>(),
                       .tokens = token_array.as<int32_t>(),
                       .parents = parent_array.as<int32_t>(),
                       .leaves = leaf_array.as<int32_t>(),
                       .rows = 2,
                       .vocab = kVocab,
                       .settings = settings},
                      stream());
      const std::vector<float> actual = download(array, DType::kF32);
      for (size_t i = 0; i < actual.size(); ++i) ASSERT_EQ(actual[i], expected[i % kVocab]) << i << " cut at " << cut;
    }
  }
}

}  // namespace
}  // namespace headrace
