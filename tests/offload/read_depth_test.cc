// The depth of reads follows from what a disk has given with each.
#include "offload/read_depth.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

int chosen(const std::vector<DepthRate>& rates) { return choose_depth(rates, "measured").depth; }

TEST(ReadDepth, IsTheLeastThatBringsNearlyAll) {
  EXPECT_EQ(chosen({{2, 0.6}, {4, 1.0}, {8, 1.15}, {32, 1.22}, {64, 1.25}}), 32);  // a virtual disk: 97.6% of the best
  EXPECT_EQ(chosen({{2, 0.6}, {4, 1.0}, {8, 1.15}, {32, 1.20}, {64, 1.25}}), 64);  // 96%
  EXPECT_EQ(chosen({{16, 2.0}, {32, 2.8}, {64, 3.0}, {128, 3.01}}), 64);           // an array of disks
  EXPECT_EQ(chosen({{16, 3.0}, {32, 3.3}, {64, 2.0}}), 32);                        // more make it worse
  EXPECT_EQ(chosen({{32, 0.97}, {64, 1.0}}), 32);
}

// A disk that does one at a time still has something to do while nobody orders more.
TEST(ReadDepth, IsNeverTooLittle) {
  EXPECT_EQ(chosen({{2, 0.2}, {4, 0.2}, {8, 0.2}, {16, 0.2}, {32, 0.2}}), 32);
  const std::vector<DepthRate> rates = {{1, 0.5}, {8, 1.96}, {16, 2.0}};
  EXPECT_EQ(choose_depth(rates, "measured").why, "measured: 1 at once 0.50, 8 1.96, 16 2.00 GB/s; 32 at least");
}

TEST(ReadDepth, ALateRoundMakesUpForAMomentOfOthers) {
  EXPECT_EQ(chosen({{32, 1.2}, {64, 0.3}, {128, 2.0}, {32, 1.2}, {64, 1.99}, {128, 0.7}}), 64);
}

TEST(ReadDepth, SaysWhy) {
  const std::vector<DepthRate> rates = {{64, 1.254}, {4, 1.02}, {64, 1.0}, {32, 1.2}};
  EXPECT_EQ(choose_depth(rates, "measured at start").why, "measured at start: 4 at once 1.02, 32 1.20, 64 1.25 GB/s");
}

TEST(ReadDepth, WithoutARateThereIsNone) {
  EXPECT_EQ(chosen({}), 0);
  EXPECT_EQ(chosen({{4, 0}, {8, 0}}), 0);
}

}  // namespace
}  // namespace headrace
