#include "cli/print/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(7713), "7,713");
  EXPECT_EQ(format_count(1234567), "1,234,567");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Format, RatesHaveThreeDigits) {
  EXPECT_EQ(format_rate(0), "0.00");
  EXPECT_EQ(format_rate(0.851), "0.85");
  EXPECT_EQ(format_rate(9.996), "10.0");
  EXPECT_EQ(format_rate(29.74), "29.7");
  EXPECT_EQ(format_rate(99.96), "100");
  EXPECT_EQ(format_rate(12345.6), "12,346");
  EXPECT_EQ(format_rate(std::numeric_limits<double>::infinity()), "?");
  EXPECT_EQ(format_rate(std::nan("")), "?");
}

TEST(Format, Times) {
  EXPECT_EQ(format_duration(0.0123), "12 ms");
  EXPECT_EQ(format_duration(0.9999), "1.0 s");
  EXPECT_EQ(format_duration(47.52), "47.5 s");
  EXPECT_EQ(format_duration(59.97), "1:00");
  EXPECT_EQ(format_duration(3725), "1:02:05");
  EXPECT_EQ(format_time_left(0), "0:00");
  EXPECT_EQ(format_time_left(25.6), "0:26");
  EXPECT_EQ(format_time_left(1e300), "?");
  EXPECT_EQ(format_time_left(-1), "?");
}

TEST(Format, AgesAndShares) {
  EXPECT_EQ(format_age(0), "0 minutes");
  EXPECT_EQ(format_age(119), "1 minute");
  EXPECT_EQ(format_age(3599), "59 minutes");
  EXPECT_EQ(format_age(3600), "1 hour");
  EXPECT_EQ(format_age(86399), "23 hours");
  EXPECT_EQ(format_age(86400), "1 day");
  EXPECT_EQ(format_age(int64_t{1500} * 86400), "1,500 days");
  EXPECT_EQ(format_percent(0.0314), "3.1%");
  EXPECT_EQ(format_percent(1.5), "150.0%");
}

TEST(Format, NamesHaveNoControlCharacters) {
  EXPECT_EQ(visible("na\xc3\xafve \xe2\x82\xac\n\tx"), "na\xc3\xafve \xe2\x82\xac\n\tx");
  EXPECT_EQ(visible("\x1b[2J\r\x7f\xc2\x9b\xff"), "\\x1b[2J\\x0d\\x7f\\xc2\\x9b\\xff");
  EXPECT_EQ(visible_name("a\nb\tc"), "a\\x0ab\\x09c");
  EXPECT_EQ(visible(std::string_view("a\0b", 3)), "a\\x00b");
}

TEST(Format, ParsesTokens) {
  int64_t tokens = 0;
  EXPECT_TRUE(parse_tokens("8192", &tokens) && tokens == 8192);
  EXPECT_TRUE(parse_tokens("128K", &tokens) && tokens == 131072);
  EXPECT_TRUE(parse_tokens("128k", &tokens) && tokens == 131072);
  EXPECT_TRUE(parse_tokens("1M", &tokens) && tokens == 1048576);
  for (const char* bad : {"", "K", "-1", "+1", "1.5K", "128KB", "128 K", "0x10", "9223372036854775808",
                          "99999999999999999K", "18446744073709551616"}) {
    EXPECT_FALSE(parse_tokens(bad, &tokens)) << bad;
  }
}

}  // namespace
}  // namespace headrace
