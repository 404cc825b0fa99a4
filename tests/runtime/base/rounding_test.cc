#include "runtime/base/rounding.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(Rounding, CutsFiguresForReports) {
  EXPECT_EQ(to_decimals(2.0 / 3, 3), 0.667);
  EXPECT_EQ(to_decimals(-1.23456, 4), -1.2346);
  EXPECT_EQ(to_decimals(0.0004, 3), 0);
  EXPECT_EQ(to_digits(123456.7, 4), 123500);
  EXPECT_EQ(to_digits(-0.00123456, 4), -0.001235);
  EXPECT_EQ(to_digits(9.9999, 4), 10);
  EXPECT_EQ(to_digits(0, 4), 0);
}

TEST(Rounding, NothingHasNoSign) {
  for (const double little : {-0.0, -0.0004, -1e-300}) EXPECT_FALSE(std::signbit(to_decimals(little, 3))) << little;
  EXPECT_FALSE(std::signbit(to_digits(-0.0, 3)));
}

TEST(Rounding, WhatIsNoNumberIsZero) {
  for (const double none : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(to_decimals(none, 3), 0);
    EXPECT_EQ(to_digits(-none, 4), 0);
  }
}

}  // namespace
}  // namespace headrace
