#include "runtime/grammar/pattern.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/runtime/grammar/accepts.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

struct Case {
  std::string pattern;
  std::vector<std::string> matches, others;  // texts, not JSON
};

std::string schema_of(const std::string& pattern) {
  return nlohmann::json{{"type", "string"}, {"pattern", pattern}}.dump();
}

TEST(Pattern, MatchesAsJsonStrings) {
  const std::vector<Case> cases = {
      {"^a*$", {"", "a", "aaa"}, {"b", "ab", "ba"}},
      {"a+", {"a", "xaax", "aa"}, {"", "xyz"}},
      {"^(foo|ba[rz])?$", {"", "foo", "bar", "baz"}, {"ba", "bax", "foobar"}},
      {"^[A-Z]{2,3}-\\d{4}$", {"AB-1234", "ABC-0000"}, {"A-1234", "ABCD-1234", "AB-12345", "ab-1234"}},
      {"^\\w+@\\w+\\.com$", {"a_1@b.com"}, {"a@b_com", "@b.com", "a b@c.com"}},
      {"^[^\"\\\\]+$", {"a", "ä€", "a b"}, {"\"", "\\", "a\"b", ""}},
      {"^[\"\\\\\\n]$", {"\"", "\\", "\n"}, {"a", ""}},
      {"^.$", {"a", "ä", "€", "😀", "\""}, {"", "ab", "\n", "ää"}},
      {"^\\S+\\s\\S+$", {"a b", "ä\tb"}, {"ab", " a"}},
      {"^(?:ab){2}c??$", {"abab", "ababc"}, {"ab", "ababab"}},
      {"^[äé]\\u00fc$", {"äü", "éü"}, {"aü", "ä"}},
      {"^[a-fA-F\\d-]{3,}$", {"a-9", "FFF0"}, {"ag1", "ab"}},
      {"^\\$\\^\\*$", {"$^*"}, {"$^"}},
      {"x|y", {"x", "ayb"}, {"ab", ""}},
      {"\\$$", {"a$"}, {"a$b"}},
      {"^((a|b)c){1,2}$", {"ac", "bcac"}, {"acbcac", "c"}},
  };
  for (const Case& c : cases) {
    const auto grammar = schema_grammar(schema_of(c.pattern), "schema.json");
    for (const std::string& text : c.matches) {
      EXPECT_TRUE(testing::accepts(*grammar, nlohmann::json(text).dump())) << c.pattern << " of " << text;
    }
    for (const std::string& text : c.others) {
      EXPECT_FALSE(testing::accepts(*grammar, nlohmann::json(text).dump())) << c.pattern << " of " << text;
    }
  }
}

TEST(Pattern, RefusesWhatItDoesNotHave) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(?=a)b", "(?"},
      {"(a)\\1", "\\1"},
      {"\\bword\\b", "\\b"},
      {"a^b", "^ inside"},
      {"[a", "unmatched ["},
      {"(a", "unmatched ("},
      {"a)", "unmatched )"},
      {"*a", "repeats nothing"},
      {"a{3,1}", "maximum is below"},
      {"^a|b$", "alternatives"},
      {"\\p{L}", "\\p"},
      {"a{99999}", "repeats more"},
      {"a**", "repeats a repetition"},
      {"\\", "ends with"},
      {"[\\u12]", "hexadecimal"},
      {"[ä-ü]", "ASCII"},
      {"[^ä]", "excludes"},
      {"\\ud800", "surrogate"},
      {"a{", "{ without a number"},
  };
  for (const auto& [pattern, why] : cases) {
    testing_support::expect_error(ExitCode::kBadInput, "schema.json", {why},
                                  [&pattern = pattern] { schema_grammar(schema_of(pattern), "schema.json"); });
  }
}

TEST(Pattern, HasTheFormats) {
  const std::vector<Case> cases = {
      {"date", {"2024-02-28", "1999-12-31"}, {"2024-13-01", "2024-02-30", "2024-04-31", "24-01-01"}},
      {"time", {"23:59:59Z", "00:00:00.5+01:30"}, {"24:00:00Z", "12:00:60Z", "12:00Z", "12:00:00"}},
      {"date-time", {"2024-01-31T10:00:00Z"}, {"2024-01-31 10:00:00Z", "2024-01-31T10:00:00"}},
      {"uuid", {"2EB8AA08-aa98-11ea-b4aa-73b441d16380"}, {"2eb8aa08-aa98-11ea-b4aa-73b441d1638", ""}},
      {"ipv4", {"192.168.0.1", "0.0.0.0", "255.255.255.255"}, {"256.0.0.1", "1.2.3", "01.2.3.4", "1.2.3.4.5"}},
      {"ipv6", {"1:2:3:4:5:6:7:8", "2001:0db8:0:0:0:0:0:ff"}, {"1:2:3", "1:2:3:4:5:6:7:g", "12345:2:3:4:5:6:7:8"}},
      {"hostname", {"www.example.com", "xn--4gbwdl.xn--wgbh1c", "a"}, {"-bad", "bad-", "a_b", "a..b", ""}},
      {"email", {"joe.bloggs@example.com", "a+b@c.de"}, {"2962", "a@b@c.de", ".a@b.de", "a.@b.de"}},
      {"uri", {"http://example.com/a?b=c#d", "urn:x:1", "mailto:a@b.de"}, {"//foo", "abc", "http://a b", ":x"}},
  };
  for (const Case& c : cases) {
    const std::string schema = nlohmann::json{{"type", "string"}, {"format", c.pattern}}.dump();
    for (const std::string& text : c.matches) {
      EXPECT_TRUE(testing::schema_accepts(schema, nlohmann::json(text).dump())) << c.pattern << " of " << text;
    }
    for (const std::string& text : c.others) {
      EXPECT_FALSE(testing::schema_accepts(schema, nlohmann::json(text).dump())) << c.pattern << " of " << text;
    }
  }
}

}  // namespace
}  // namespace headrace
