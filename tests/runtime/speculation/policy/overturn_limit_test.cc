// --max-overturned: when an approximate run becomes lossless, and approximate again.
#include "runtime/speculation/policy/overturn_limit.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

constexpr VerifyOutcome kClean{.judged = 20}, kOneWrong{.judged = 20, .rejected = 1};

TEST(OverturnLimit, IsExceededByMoreThanOneWrongTokenOfMany) {
  OverturnLimit limit(0.02);
  EXPECT_DOUBLE_EQ(limit.share(), 0.01);
  limit.record(kOneWrong);
  EXPECT_FALSE(limit.exceeded()) << limit.share();
  limit.record(kOneWrong);
  EXPECT_TRUE(limit.exceeded()) << limit.share();
}

TEST(OverturnLimit, EndsAtHalfOfIt) {
  OverturnLimit limit(0.02);
  for (int i = 0; i < 4; ++i) limit.record(kOneWrong);
  int clean = 0;
  while (limit.exceeded() && clean < 100) {
    EXPECT_GT(limit.share(), 0.01);
    limit.record(kClean);
    ++clean;
  }
  EXPECT_LE(limit.share(), 0.01);
  EXPECT_GT(clean, 3);
  EXPECT_LT(clean, 40);
}

TEST(OverturnLimit, OfNothingIsExceededByOneToken) {
  OverturnLimit limit(0);
  for (int i = 0; i < 100; ++i) limit.record(kClean);
  EXPECT_FALSE(limit.exceeded());
  limit.record(kOneWrong);
  EXPECT_TRUE(limit.exceeded());
  for (int i = 0; i < 100; ++i) limit.record(kClean);
  EXPECT_TRUE(limit.exceeded());
}

TEST(OverturnLimit, IsNotExceededByUsualRuns) {  // 2% of an int8 copy's tokens, by a limit of 5%
  OverturnLimit limit(0.05);
  for (int i = 0; i < 500; ++i) {
    limit.record(i % 5 < 2 ? kOneWrong : kClean);
    ASSERT_FALSE(limit.exceeded()) << i;
  }
}

}  // namespace
}  // namespace headrace
