// The depth of reads follows from what a disk has given with each.
#include "offload/spill/read_depth.h"

#include <gtest/gtest.h>

#include <vector>

namespace headrace {
namespace {

int chosen(const std::vector<DepthRate>& rates) { return choose_depth(rates, "measured").depth; }

TEST(ReadDepth, IsTheLeastThatBringsNearlyAll) {
  EXPECT_EQ(chosen({{32, 1.22}, {64, 1.25}}), 32);             // a virtual disk: 97.6% of the best
  EXPECT_EQ(chosen({{32, 1.20}, {64, 1.25}}), 64);             // 96%
  EXPECT_EQ(chosen({{32, 2.8}, {64, 3.0}, {128, 3.01}}), 64);  // an array of disks
  EXPECT_EQ(chosen({{32, 3.3}, {64, 2.0}}), 32);               // more make it worse
  EXPECT_EQ(chosen({{32, 0.97}, {64, 1.0}}), 32);
}

// What an idle disk does with fewer says nothing of a step: neither are they chosen, nor is more held against them.
TEST(ReadDepth, FewerThanTheLeastDoNotCount) {
  EXPECT_EQ(chosen({{4, 2.71}, {8, 2.62}, {16, 2.38}, {32, 1.98}, {64, 1.9}}), 32);
  EXPECT_EQ(chosen({{4, 2.71}, {32, 1.8}, {64, 1.98}}), 64);
  EXPECT_EQ(chosen({{1, 0.5}, {8, 1.96}, {16, 2.0}}), 0);
}

TEST(ReadDepth, ALateRoundMakesUpForAMomentOfOthers) {
  EXPECT_EQ(chosen({{32, 1.2}, {64, 0.3}, {128, 2.0}, {32, 1.2}, {64, 1.99}, {128, 0.7}}), 64);
}

TEST(ReadDepth, SaysWhy) {
  const std::vector<DepthRate> rates = {{64, 1.254}, {4, 1.02}, {64, 1.0}, {32, 1.2}};
  EXPECT_EQ(choose_depth(rates, "measured at start").why, "measured at start: 32 at once 1.20, 64 1.25 GB/s");
}

// A slow disk, whose rates stand on a request or two, which may have been done together.
TEST(ReadDepth, ARateOfAFewReadsIsNone) {
  const std::vector<DepthRate> few = {{32, 0.05, kMinRequests}, {64, 9.0, kMinRequests - 1}};
  EXPECT_EQ(chosen(few), 32);
  EXPECT_EQ(choose_depth(few, "measured at start").why, "measured at start: too few reads to tell");
  EXPECT_EQ(chosen({{32, 5.0, 1}, {64, 0, 0}}), 32);
  EXPECT_EQ(chosen({{32, 5.0, 1}, {64, 1.0}, {32, 0.5}}), 64);  // a round that stands counts, another does not
  EXPECT_EQ(chosen({{4, 5.0, 1}, {32, 1.0}, {64, 1.1}}), 64);
}

TEST(ReadDepth, WithoutARateThereIsNone) {
  EXPECT_EQ(chosen({}), 0);
  EXPECT_EQ(chosen({{32, 0}, {64, 0}}), 0);
}

}  // namespace
}  // namespace headrace
