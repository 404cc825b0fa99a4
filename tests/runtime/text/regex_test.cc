// Texts cut by regular expressions and by every behavior of a Split, as the reference does it
// (tests/data/tokenizers/regex.json, by make_regex_golden.py). What the engines read differently is refused by name.
#include "runtime/text/regex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "runtime/text/splitter.h"
#include "tests/runtime/text/text_test_support.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

using testing::Json;
using Pieces = std::vector<std::string>;

Pieces cut(SplitRule rule, const std::string& text) {
  std::vector<SplitRule> rules;
  rules.push_back(std::move(rule));
  const Splitter splitter(std::move(rules));
  Regex::Scratch scratch;
  Pieces pieces;
  splitter.split(text, &scratch, [&](std::string_view piece) { pieces.emplace_back(piece); });
  return pieces;
}

TEST(Regex, CutsAsTheReference) {
  const Json rows = testing::read_json("regex.json").at("same");
  ASSERT_GT(rows.size(), 150u);
  for (const Json& row : rows) {
    const auto pattern = row.at("pattern").get<std::string>(), text = row.at("text").get<std::string>();
    EXPECT_EQ(cut({Regex(pattern, Regex::Syntax::kPattern, "test")}, text), row.at("pieces").get<Pieces>())
        << pattern << " on " << text;
  }
}

TEST(Regex, RefusesByNameWhatItReadsDifferently) {
  const Json rows = testing::read_json("regex.json").at("refused");
  ASSERT_GT(rows.size(), 60u);
  for (const Json& row : rows) {
    const auto pattern = row.at("pattern").get<std::string>();
    SCOPED_TRACE(pattern);
    testing_support::expect_error(ExitCode::kBadInput, "test", {row.at("names").get<std::string>()},
                                  [&] { Regex(pattern, Regex::Syntax::kPattern, "test"); });
  }
}

// Through tokenizer.json: each piece of the text alone has the ids that it has in the whole.
TEST(SplitRules, CutAsTheReference) {
  const Json file = testing::read_json("regex.json");
  constexpr std::array<std::pair<const char*, const char*>, 5> kNames = {
      {{"isolated", "Isolated"},
       {"removed", "Removed"},
       {"merged_with_previous", "MergedWithPrevious"},
       {"merged_with_next", "MergedWithNext"},
       {"contiguous", "Contiguous"}}};
  for (const Json& row : file.at("rules")) {
    SCOPED_TRACE(row.dump());
    const auto found =
        std::find_if(kNames.begin(), kNames.end(), [&](const auto& name) { return row.at("behavior") == name.first; });
    ASSERT_NE(found, kNames.end());
    const bool punctuation = row.contains("punctuation");
    const Json step = punctuation ? Json{{"type", "Punctuation"}, {"behavior", found->second}}
                                  : Json{{"type", "Split"},
                                         {"pattern", row.at("pattern")},
                                         {"behavior", found->second},
                                         {"invert", row.at("invert")}};
    Json json = testing::read_json("gpt2.tokenizer.json");
    const Json plain = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
    json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {step, plain}}};
    const Tokenizer tokenizer = testing::load(json);
    json["pre_tokenizer"] = plain;
    const Tokenizer words = testing::load(json);
    std::vector<int32_t> expected;
    for (const auto& piece : row.at("pieces").get<Pieces>())
      for (const int32_t id : testing::encode(words, piece)) expected.push_back(id);
    EXPECT_EQ(testing::encode(tokenizer, row.at("text").get<std::string>()), expected);
  }
}

}  // namespace
}  // namespace headrace
