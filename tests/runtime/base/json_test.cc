// JSON of untrusted origin: what is taken, what is refused and by which words, and that time is linear.
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

#include "runtime/base/json_file.h"
#include "tests/support/refusal.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;

json client(const std::string& text) { return parse_json(text, "in", DuplicateKeys::kRefuse, JsonOrigin::kClient); }

std::string repeated(const std::string& text, size_t count) {
  std::string out;
  out.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

TEST(Json, ReadsWhatTheLibraryWrites) {
  const json value = {{"a", {1, -2, 0, 18446744073709551615u, INT64_MIN, 0.5, -1e-9, 1e300}},
                      {"b", {{"c", nullptr}, {"d", true}, {"e", false}}},
                      {"text", "\"\\/\b\f\n\r\t \xc3\xa9 \xf0\x9f\x98\x80 \x7f"},
                      {"", json::array()},
                      {"o", json::object()}};
  for (const int indent : {-1, 2}) {
    for (const bool ascii : {false, true}) EXPECT_EQ(parse_json(value.dump(indent, ' ', ascii), "in"), value);
  }
  EXPECT_EQ(parse_json("\xef\xbb\xbf [ 1 , 2 ]\r\n", "in"), json({1, 2}));
  EXPECT_TRUE(parse_json("5", "in").is_number_unsigned());
  EXPECT_TRUE(parse_json("-5", "in").is_number_integer());
  EXPECT_TRUE(parse_json("5.0", "in").is_number_float());
  EXPECT_EQ(parse_json("18446744073709551616", "in").get<double>(), 0x1p64);
  EXPECT_EQ(parse_json("1e-400", "in").get<double>(), 0);
  EXPECT_EQ(parse_json(R"({"a":1,"a":2})", "in"), json({{"a", 2}}));
  EXPECT_EQ(parse_ordered_json(R"({"b":1,"a":2,"b":3})", "in").dump(), R"({"b":3,"a":2})");
}

TEST(Json, RefusesWhatIsNone) {
  for (const char* text : {"",        " ",       "{",         "[",           "[1",       "[1,",      "[1,]",
                           "{\"a\"",  "{\"a\":", "{\"a\":1",  "{\"a\":1,}",  "{a:1}",    "{1:1}",    "nul",
                           "nulll",   "tru",     "+1",        "01",          "1.",       ".5",       "1e",
                           "1e+",     "--1",     "-",         "NaN",         "Infinity", "'a'",      "\"a",
                           "\"\\",    "\"\\x\"", "\"\\u12\"", "\"\\u12g4\"", "\"\n\"",   "\"\xff\"", "\"\xed\xa0\x80\"",
                           "1 2",     "[] ]",    "{}x",       "\v1",         "]",        ":",        ",",
                           "\"a\":1", "[1 2]",   "{\"a\" 1}", "/**/1",       "\xff\xfe"}) {
    expect_error(ExitCode::kBadInput, "in", {"not valid JSON"}, [&] { parse_json(text, "in"); });
  }
  expect_error(ExitCode::kBadInput, "in", {"not valid JSON"}, [] { parse_json(std::string(3, '\0'), "in"); });
  expect_error(ExitCode::kBadInput, "in", {"byte 6 of 6", "cut short"}, [] { parse_json("[1, 2,", "in"); });
  expect_error(ExitCode::kBadInput, "in", {"\"b\" occurs twice"}, [] { client(R"({"a":[{"b":1,"c":2,"b":3}]})"); });
  expect_error(ExitCode::kBadInput, "in", {"deeper than 64 levels"},
               [] { parse_json(std::string(1000000, '['), "in"); });
  EXPECT_NO_THROW(parse_json(std::string(65, '[') + std::string(65, ']'), "in"));
  expect_error(ExitCode::kBadInput, "in", {"more than 1048576 values"},
               [] { client("[" + repeated("1,", 1048576) + "1]"); });
  EXPECT_TRUE(json_or_null("[1").is_null());
}

TEST(Json, LoneSurrogatesAreReplacedOrNamed) {
  EXPECT_EQ(client(R"("a\ud83d b")"), "a\xEF\xBF\xBD b");
  EXPECT_EQ(client(R"("\ude00\ud83d")"), "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(client(R"("\ud83d\ud83d\ude00")"), "\xEF\xBF\xBD\xf0\x9f\x98\x80");
  EXPECT_EQ(client(R"("\ud83d\u0041")"),
            "\xEF\xBF\xBD"
            "A");
  EXPECT_EQ(client(R"({"\uD83D":1})"), json({{"\xEF\xBF\xBD", 1}}));
  expect_error(ExitCode::kBadInput, "in", {"lone surrogate"}, [] { parse_json(R"("a\ud83d b")", "in"); });
}

TEST(Json, NumbersBeyondDoublesAreInfiniteOrRefused) {
  EXPECT_TRUE(std::isinf(client("[1e400]")[0].get<double>()));
  EXPECT_EQ(shown(client("-1e400")), "-1e999");
  EXPECT_TRUE(std::isinf(client(std::string(400, '9')).get<double>()));
  expect_error(ExitCode::kBadInput, "in", {"too large"}, [] { parse_json("1e400", "in"); });
}

TEST(Json, WholeNumbersComeInAnyForm) {
  const std::string source = "in";
  const auto whole = [&](const std::string& text) {
    const json object = client("{\"n\":" + text + "}");
    return JsonFields(object, source).integer("n", INT64_MIN, INT64_MAX);
  };
  EXPECT_EQ(whole("5.0"), 5);
  EXPECT_EQ(whole("5e3"), 5000);
  EXPECT_EQ(whole("-9223372036854775808"), INT64_MIN);
  EXPECT_EQ(whole("4e18"), 4000000000000000000);
  for (const char* wrong : {"5.5", "1e400", "-1e400", "9223372036854775808", "1e30", "\"5\""}) {
    expect_error(ExitCode::kBadInput, "in", {"n "}, [&] { whole(wrong); });
  }
}

// 16 MiB of what took a quadratic parser hours.
TEST(Json, TimeIsLinear) {
  constexpr size_t kBytes = size_t{16} << 20;
  std::string keys = "{";
  for (int i = 0; keys.size() < kBytes; ++i) keys += "\"" + std::to_string(i) + "\":0,";
  keys.back() = '}';
  const std::string texts[] = {"[" + repeated("{},", kBytes / 3) + "0]",
                               "[" + repeated("[],", kBytes / 3) + "0]",
                               keys,
                               "[" + repeated("1,", kBytes / 2) + "1]",
                               "\"" + repeated("\\u0001", kBytes / 6) + "\"",
                               std::string(kBytes, '9'),
                               "[" + repeated("{\"a\":", 60) + "\"" + std::string(kBytes, 'x'),
                               "[" + repeated("{\"a\":[]},", 100000) + "0]"};
  for (const std::string& text : texts) {
    const auto begin = std::chrono::steady_clock::now();
    for (const JsonOrigin origin : {JsonOrigin::kClient, JsonOrigin::kFile}) {
      try {
        parse_json(text, "in", DuplicateKeys::kRefuse, origin);
      } catch (const Error&) {
      }
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    EXPECT_LT(seconds.count(), testing::kSanitized ? 120 : 20) << text.substr(0, 20);
  }
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_ordered_json(keys, "in").size(), parse_json(keys, "in").size());
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), testing::kSanitized ? 120 : 20);
}

}  // namespace
}  // namespace headrace
