// Two runs over one prompt compared: the divergence of two rows of logits, the same arithmetic twice, another one, and
// the memory that it takes.
#include "runtime/session/state_comparison.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using testing::LoadedModel;

TEST(Divergence, IsThatOfTheDistributions) {
  const std::vector<float> p = {std::log(0.5f), std::log(0.25f), std::log(0.25f)};
  const std::vector<float> q = {std::log(0.25f) + 7, std::log(0.5f) + 7, std::log(0.25f) + 7};  // 7 is all the same
  const Divergence found = divergence(p, q), same = divergence(p, p);
  EXPECT_NEAR(found.kl, 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-6);
  EXPECT_FALSE(found.same_first);
  EXPECT_EQ(same.kl, 0);
  EXPECT_TRUE(same.same_first);
  EXPECT_NEAR(divergence(q, p).kl, 0.25 * std::log(2.0), 1e-6);
  // Of a token without any probability, and of equal first tokens.
  const std::vector<float> sure = {0, -1e30f, -1e30f}, even = {0, 0, 0};
  EXPECT_NEAR(divergence(sure, even).kl, std::log(3.0), 1e-6);
  EXPECT_TRUE(divergence(sure, even).same_first);
  const std::vector<float> none = {std::nanf(""), 0, 0};
  EXPECT_TRUE(std::isnan(divergence(p, none).kl));
}

class ComparedStates : public ::testing::TestWithParam<DeviceChoice> {
 protected:
  static constexpr size_t kRows = 1100;  // beyond the rows whose attention is never in 8 bits
  struct Scored {
    std::vector<float> log_probs;
    uint64_t host_bytes, planned_bytes;
  };
  Scored score(bool int8, StateComparison* compare) {
    PromptScores scores{.next = {ids.begin() + 1, ids.end()}, .log_probs = {}, .compare = compare};
    SessionOptions options = model.options(kRows, 1);
    options.scores = &scores;
    options.prefill_int8 = int8;
    MemoryBudget& budget = model.device->host_mem();
    const uint64_t before = budget.used_bytes();
    budget.reset_peak();
    const auto session = model.session(options);
    session->prefill({ids.data(), kRows}, nullptr, nullptr);
    const MemoryPlan& plan = session->plan();
    return {.log_probs = scores.log_probs,
            .host_bytes = budget.peak_bytes() - before,
            .planned_bytes = plan.host_total_bytes + (cpu() ? plan.vram_bytes : 0)};
  }
  bool cpu() const { return model.device->backend() == Backend::kCpu; }
  const LoadedModel model{testing::tiny_model("llama31"), DType::kBF16, GetParam()};
  const std::vector<int32_t> ids =
      testing::made_up_ids(kRows + 1, static_cast<int32_t>(model.checkpoint->config().vocab));
};

TEST_P(ComparedStates, TheSameArithmeticDoesNotDiffer) {
  for (const bool int8 : {false, true}) {
    StateComparison compared;
    const Scored alone = score(int8, nullptr), first = score(int8, &compared);
    EXPECT_TRUE(compared.kl.empty());
    const std::vector<std::byte> states = compared.states;
    const Scored second = score(int8, &compared);
    EXPECT_EQ(alone.log_probs, first.log_probs);
    EXPECT_EQ(alone.log_probs, second.log_probs);
    EXPECT_EQ(compared.states, states);
    EXPECT_EQ(compared.kl, std::vector<float>(kRows, 0));
    EXPECT_EQ(compared.same_first, std::vector<uint8_t>(kRows, 1));
  }
}

TEST_P(ComparedStates, AnotherArithmeticDiffersALittle) {
  StateComparison compared;
  const Scored plain = score(false, &compared), int8 = score(true, &compared);
  EXPECT_EQ(int8.log_probs, score(true, nullptr).log_probs);
  ASSERT_EQ(compared.kl.size(), kRows);
  for (const float kl : compared.kl) EXPECT_GE(kl, -1e-6f);
  const float mean = std::accumulate(compared.kl.begin(), compared.kl.end(), 0.0f) / kRows;
  EXPECT_LT(mean, 0.05f);
  EXPECT_GT(std::accumulate(compared.same_first.begin(), compared.same_first.end(), 0), kRows / 2);
}

// A comparison is planned for, in the first run as in the second.
TEST_P(ComparedStates, TakeNoMoreThanIsPlanned) {
  StateComparison compared;
  const Scored alone = score(false, nullptr), first = score(false, &compared), second = score(true, &compared);
  for (const Scored& run : {alone, first, second}) EXPECT_LE(run.host_bytes, run.planned_bytes);
  EXPECT_GT(first.planned_bytes, alone.planned_bytes);
}

INSTANTIATE_TEST_SUITE_P(Devices, ComparedStates, ::testing::ValuesIn(testing::session_devices()),
                         [](const auto& given) { return testing::device_name(given.param); });

}  // namespace
}  // namespace headrace
