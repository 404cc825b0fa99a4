#include "runtime/speculation/policy/worthwhile.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

// Steps of a made-up run of `tokens` tokens: the share that is plain.
double plain_share(double plain_ms, double cycle_ms, int64_t cycle_tokens, int64_t tokens) {
  Worthwhile worthwhile;
  int64_t plain = 0;
  for (int64_t said = 0; said < tokens;) {
    if (worthwhile.plain()) {
      worthwhile.record_plain(plain_ms);
      ++plain;
      ++said;
    } else {
      worthwhile.record_cycle(cycle_ms, cycle_tokens);
      said += cycle_tokens;
    }
  }
  return static_cast<double>(plain) / static_cast<double>(tokens);
}

TEST(Worthwhile, TakesWhatCostsLessAToken) {
  EXPECT_LT(plain_share(22, 120, 8, 1000), 0.01);  // 15 ms a token
  EXPECT_GT(plain_share(22, 400, 8, 1000), 0.9);   // 50 ms a token
}

// What costs more is tried ever less often, and what has become better is found.
TEST(Worthwhile, LooksAgain) {
  Worthwhile worthwhile;
  while (worthwhile.plain()) worthwhile.record_plain(20);
  int64_t before = 0;
  for (int i = 0; i < 6; ++i) {
    worthwhile.record_cycle(1000, 5);
    int64_t steps = 0;
    for (; worthwhile.plain(); ++steps) worthwhile.record_plain(20);
    EXPECT_GT(steps, before);
    before = steps;
  }
  for (int step = 0; step < 40 && !worthwhile.plain(); ++step) worthwhile.record_cycle(50, 5);
  EXPECT_FALSE(worthwhile.plain());
  worthwhile.record_cycle(1000, 5);
  int64_t steps = 0;
  for (; worthwhile.plain(); ++steps) worthwhile.record_plain(20);
  EXPECT_LT(steps, before);
}

}  // namespace
}  // namespace headrace
