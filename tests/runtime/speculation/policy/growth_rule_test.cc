#include "runtime/speculation/policy/growth_rule.h"

#include <gtest/gtest.h>

namespace headrace {
namespace {

TEST(GrowthRule, GrowsAFewStepsBeforeARefreshHasBeenTimed) {
  GrowthRule streams(true), resident(false);
  EXPECT_TRUE(streams.pays(0, 1, 0));
  EXPECT_TRUE(streams.pays(7, 5, 0.1));
  EXPECT_FALSE(streams.pays(8, 5, 0.1));
  EXPECT_FALSE(streams.pays(3, 5, 0)) << "nothing is left to grow";
  EXPECT_TRUE(resident.pays(3, 5, 0.1));
  EXPECT_FALSE(resident.pays(4, 5, 0.1));
}

// 10 tokens for a refresh of 100 ms and 10 steps of 10 ms: a step that adds less than half a token does not pay.
TEST(GrowthRule, AsksWhatTimeIsWorth) {
  GrowthRule rule(true);
  for (int i = 0; i < 10; ++i) rule.record_partial(10);
  for (int i = 0; i < 10; ++i) rule.record_refresh(100, 10, 10, 10);
  EXPECT_TRUE(rule.pays(10, 10, 0.55));
  EXPECT_FALSE(rule.pays(10, 10, 0.45));
  // What is to come counts a little: a tree that promises little more than the root sets no measure of its own.
  EXPECT_FALSE(rule.pays(10, 2, 0.35));
  EXPECT_TRUE(rule.pays(10, 2, 0.45));
}

// Where half of what is expected comes, a step must promise twice as much, nearly.
TEST(GrowthRule, BelievesWhatHasComeTrue) {
  GrowthRule rule(true);
  for (int i = 0; i < 10; ++i) rule.record_partial(10);
  for (int i = 0; i < 20; ++i) rule.record_refresh(100, 10, 20, 10);
  EXPECT_TRUE(rule.pays(10, 20, 1.05));
  EXPECT_FALSE(rule.pays(10, 20, 0.85));
}

// A first step or refresh that paid for what comes once does not stand for the rest, nor does one of a busy machine.
TEST(GrowthRule, IsNotMisledByOneSlowStep) {
  GrowthRule calm(true), shaken(true);
  for (GrowthRule* rule : {&calm, &shaken}) {
    const double once = rule == &shaken ? 20 : 1;
    rule->record_partial(10 * once);
    rule->record_partial(10);
    rule->record_refresh(100 * once, 2, 10, 10);
    for (int i = 0; i < 6; ++i) rule->record_partial(10);
    rule->record_refresh(100, 6, 10, 10);
    for (int i = 0; i < 6; ++i) rule->record_partial(10);
    rule->record_refresh(100, 6, 10, 10);
  }
  for (const double growth : {0.3, 0.8}) EXPECT_EQ(calm.pays(6, 10, growth), shaken.pays(6, 10, growth)) << growth;
}

TEST(GrowthRule, TakesTheCostsThatItIsGiven) {
  GrowthRule rule(true, {.partial_ms = 10, .refresh_ms = 100});
  rule.record_partial(1);
  rule.record_refresh(1, 10, 10, 10);
  EXPECT_TRUE(rule.pays(10, 10, 0.55));
  EXPECT_FALSE(rule.pays(10, 10, 0.45));
}

}  // namespace
}  // namespace headrace
