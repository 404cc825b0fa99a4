#include "cache/base.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

namespace headrace {
namespace {

TEST(Bytes, ParsesTheUsualSpellings) {
  const struct {
    const char* text;
    uint64_t bytes;
  } rows[] = {{"0", 0},
              {"4096", 4096},
              {"24GiB", 24 * kGiB},
              {"24G", 24 * kGiB},
              {"24g", 24 * kGiB},
              {"24GB", 24'000'000'000},
              {"24gb", 24'000'000'000},
              {"512MB", 512'000'000},
              {"1.5KB", 1500},
              {"3TB", 3'000'000'000'000},
              {"512MiB", 512 * kMiB},
              {"1.5g", kGiB + kGiB / 2},
              {"64 KiB", 64 * kKiB},
              {"2t", 2048 * kGiB},
              {"7b", 7}};
  for (const auto& row : rows) {
    uint64_t bytes = 1;
    EXPECT_TRUE(parse_bytes(row.text, &bytes)) << row.text;
    EXPECT_EQ(bytes, row.bytes) << row.text;
  }
}

TEST(Bytes, RefusesWhatIsNotASize) {
  for (const char* text : {"", "GiB", "-1", "-1GiB", "1e400", "nan", "inf", "24GiB!", "2 4", "1x", "1bb", "1gbb", "1gi",
                           "1bi", "1ib", "kb", "9223372036854775808", "0x10", "99999999TiB"}) {
    uint64_t bytes = 0;
    EXPECT_FALSE(parse_bytes(text, &bytes)) << text;
  }
}

TEST(Bytes, PrintsWithAUnit) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(24 * kGiB), "24.00 GiB");
}

TEST(Numbers, Bf16RoundsToNearestEven) {
  EXPECT_EQ(f32_to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000u)).bits, 0x3f80);  // half-way, to even: down
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000u)).bits, 0x3f82);  // half-way, to even: up
  EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808001u)).bits, 0x3f81);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001u)))));
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    if (!std::isnan(bf16_to_f32(value))) {
      EXPECT_EQ(f32_to_bf16(bf16_to_f32(value)).bits, bits);
    }
  }
}

TEST(Numbers, F16RoundTripsAndRounds) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const f16 value{static_cast<uint16_t>(bits)};
    const float wide = f16_to_f32(value);
    if (!std::isnan(wide)) {
      EXPECT_EQ(f32_to_f16(wide).bits, bits);
    }
  }
  EXPECT_EQ(f16_to_f32({0x3c00}), 1.0f);
  EXPECT_EQ(f16_to_f32({0x7bff}), 65504.0f);
  EXPECT_EQ(f16_to_f32({0x0001}), 0x1p-24f);
  EXPECT_EQ(f32_to_f16(65520.0f).bits, 0x7c00);  // half-way to the next: infinity
  EXPECT_EQ(f32_to_f16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(f32_to_f16(1.0f + 0x1p-11f).bits, 0x3c00);  // half-way, to even
  EXPECT_EQ(f32_to_f16(1.0f + 0x3p-11f).bits, 0x3c02);
  EXPECT_EQ(f32_to_f16(0x1p-25f).bits, 0x0000);
  EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(std::numeric_limits<float>::quiet_NaN()))));
}

TEST(Errors, SayWhereWhatAndHint) {
  try {
    throw_error(ExitCode::kBadInput, "model.gguf", "version 9", "Versions 2 and 3 are read.");
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "model.gguf: version 9\n  Versions 2 and 3 are read.");
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    return;
  }
  FAIL();
}

TEST(Errors, HaveAFirstLine) {
  const Error error({.code = ExitCode::kStorage, .where = "/data", .what = "is full", .hint = "Free some."});
  EXPECT_EQ(first_line(error), "/data: is full");
  EXPECT_EQ(first_line("one"), "one");
  EXPECT_EQ(first_line(""), "");
  EXPECT_EQ(first_line("\ntwo"), "");
}

TEST(ErrorsDeathTest, CheckPrintsExpressionAndValues) {
  const int rows = 3;
  EXPECT_DEATH(CHECK(rows > 4, "rows=", rows), "CHECK\\(rows > 4\\) failed: rows=3");
}

// The definition of docs/design.md, section 6, rule 2: the largest multiple of 64 that is at most t - 256, 0 if there
// is none.
TEST(Tail, BeginsAtTheLastTileBeforeTheWindow) {
  for (int64_t t = 0; t < 5000; ++t) {
    int64_t expected = 0;
    for (int64_t a = 0; a <= t - 256; a += 64) expected = a;
    EXPECT_EQ(tail_begin(t), expected) << t;
    EXPECT_LT(t - tail_begin(t), 256 + 64);
  }
}

TEST(Error, AFileNameMakesNoSecondLine) {
  const Error error({ExitCode::kBadInput, "a\nerror: b", "is not here", "Name another"});
  EXPECT_STREQ(error.what(), "a\\x0aerror: b: is not here\n  Name another");
  EXPECT_EQ(error.info().where, "a\nerror: b");
}

}  // namespace
}  // namespace headrace
