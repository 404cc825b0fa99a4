// Texts are encoded in chunks, and chunks that were encoded before are looked up: neither changes an id.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "cache/base.h"
#include "runtime/text/chunk_cache.h"
#include "runtime/text/splitter.h"
#include "tests/runtime/text/text_test_support.h"
#include "tests/support/sanitized.h"

namespace headrace {
namespace {

using testing::encode;
using testing::Json;
using Words = std::vector<std::string>;

struct Family {
  const char* name;
  std::vector<std::string> patterns;
};

std::vector<Family> families() {
  return {{"gpt2", {std::string(kGpt2Pattern)}},
          {"smollm", {"\\p{N}", std::string(kGpt2Pattern)}},
          {"digits", {"\\p{N}+", std::string(kGpt2Pattern)}},
          {"llama3", {std::string(kLlama3Pattern)}},
          {"qwen2", {std::string(kQwen2Pattern)}},
          {"qwen35", {std::string(kQwen35Pattern)}},
          {"seed-coder", {std::string(kSeedCoderPattern)}},
          {"tekken", {std::string(kTekkenPattern)}},
          {"o200k", {std::string(kO200kPattern)}}};
}

Splitter splitter_of(const std::vector<std::string>& patterns, Regex::Syntax syntax = Regex::Syntax::kPattern) {
  std::vector<SplitRule> all;
  for (const std::string& pattern : patterns) all.push_back({Regex(pattern, syntax, "test")});
  return Splitter(std::move(all));
}

// All kinds of characters that the patterns tell apart, spaces and line ends often.
std::string random_text(std::mt19937& dice, size_t characters) {
  constexpr std::array<const char*, 30> kCharacters = {
      " ", " ",  " ", " ",      "\n",     "\r",     "\t",     "\u00a0", "\u3000",     "\u2028",
      "a", "B",  "e", "'s",     "'LL",    "x",      "7",      "42",     ".",          ",",
      "/", "\"", "<", "\u00e9", "\u0301", "\u65e5", "\u0416", "\u00b2", "\U0001F642", "'"};
  std::string text;
  for (size_t i = 0; i < characters; ++i) text += kCharacters[dice() % kCharacters.size()];
  return text;
}

void add_words(const Splitter& splitter, std::string_view text, Words* words) {
  Regex::Scratch scratch;
  splitter.split(text, &scratch, [words](std::string_view word) { words->emplace_back(word); });
}

TEST(Chunks, HaveTheWordsOfTheText) {
  std::mt19937 dice(1);
  int64_t cuts = 0;
  for (const Family& family : families()) {
    const Splitter splitter = splitter_of(family.patterns);
    for (int round = 0; round < 3000; ++round) {
      const std::string text = random_text(dice, 1 + dice() % 24);
      Words whole, chunks;
      add_words(splitter, text, &whole);
      std::string_view rest = text;
      while (const std::optional<size_t> cut = splitter.cut(rest, 0)) {
        ASSERT_GT(*cut, 0u);
        add_words(splitter, rest.substr(0, *cut), &chunks);
        rest.remove_prefix(*cut);
        ++cuts;
      }
      add_words(splitter, rest, &chunks);
      ASSERT_EQ(chunks, whole) << family.name << ": '" << text << "'";
    }
  }
  EXPECT_GT(cuts, 10000);
}

TEST(Chunks, EndBeforeASpaceBehindAWord) {
  const Splitter gpt2 = splitter_of({std::string(kGpt2Pattern)});
  EXPECT_EQ(gpt2.cut("one two three", 0), 3u);
  EXPECT_EQ(gpt2.cut("one two three", 4), 7u);
  EXPECT_EQ(gpt2.cut("one \n\u3000 \t  two", 3), 3u);
  EXPECT_EQ(gpt2.cut("one \n\u3000 \t  two", 4), std::nullopt);
  EXPECT_EQ(gpt2.cut("one\ntwo", 0), std::nullopt);
  EXPECT_EQ(gpt2.cut("one", 3), std::nullopt);
  EXPECT_EQ(gpt2.cut("", 0), std::nullopt);
}

TEST(Chunks, AreOfKnownPatternsOnly) {
  EXPECT_EQ(splitter_of({}).cut("one two", 0), std::nullopt);
  EXPECT_EQ(splitter_of({"o."}).cut("one two", 0), std::nullopt);
  EXPECT_EQ(splitter_of({std::string(kGpt2Pattern), "o."}).cut("one two", 0), std::nullopt);
  EXPECT_EQ(splitter_of({"\\p{N}"}, Regex::Syntax::kLiteral).cut("one two", 0), std::nullopt);
  for (const char* digits : {"\\p{N}", "\\p{N}+"}) {  // the text between two digits is one word
    EXPECT_EQ(splitter_of({digits}).cut("one two", 0), std::nullopt);
    EXPECT_EQ(splitter_of({digits, std::string(kGpt2Pattern)}).cut("one two", 0), 3u);
  }
}

// In a group of its own a pattern is not known, and its texts are encoded whole.
Tokenizer encodes_whole(Json json, const Family& family) {
  Json steps = Json::array();
  for (const std::string& pattern : family.patterns) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", "(?:" + pattern + ")"}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}});
  json["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", steps}};
  return testing::load(json);
}

TEST(Chunks, GiveTheIdsOfTheWholeText) {
  std::mt19937 dice(2);
  for (const Family& family : families()) {
    if (family.patterns.size() > 1) continue;
    if (family.name == std::string("seed-coder") || family.name == std::string("qwen35")) continue;  // no vocabulary
    const Json json = testing::read_json(std::string(family.name) + ".tokenizer.json");
    const Tokenizer chunks = testing::load(json), whole = encodes_whole(json, family);
    std::string text;
    for (const Json& row : testing::read_json(std::string(family.name) + ".ids.json"))
      text += row.at("text").get<std::string>() + " and ";
    ASSERT_GT(text.size(), 10000u);
    const int rounds = testing::kSanitized ? 4 : 20;
    for (int round = 0; round < rounds; ++round) {  // each begins as the one before, some bytes of markup included
      const std::string prompt = text.substr(0, dice() % text.size()) + random_text(dice, 300) + text;
      EXPECT_EQ(encode(chunks, prompt), encode(whole, prompt)) << family.name << ", " << round;
      EXPECT_EQ(encode(chunks, prompt, SpecialTokens::kAsText), encode(whole, prompt, SpecialTokens::kAsText))
          << family.name << ", " << round;
    }
  }
}

TEST(ChunkCache, KnowsWhatWasAddedUntilItIsFull) {
  ChunkCache cache;
  std::vector<int32_t> ids = {7};
  EXPECT_FALSE(cache.append("one", &ids));
  cache.add("one", std::vector<int32_t>{1, 2});
  cache.add("one", std::vector<int32_t>{1, 2});
  EXPECT_TRUE(cache.append("one", &ids));
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 1, 2}));
  cache.add(std::string(kMiB, 'x'), ids);  // more than an eighth of the cache
  EXPECT_FALSE(cache.append(std::string(kMiB, 'x'), &ids));
  size_t known = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string chunk = std::to_string(i) + std::string(1000, '.');
    cache.add(chunk, ids);
    EXPECT_TRUE(cache.append(chunk, &ids));
    ids.resize(3);
  }
  for (int i = 0; i < 5000; ++i) known += cache.append(std::to_string(i) + std::string(1000, '.'), &ids);
  EXPECT_GT(known, 500u);
  EXPECT_LT(known, 4200u);  // 4 MiB of text and ids
  ids.clear();
  EXPECT_FALSE(cache.append("one", &ids));
}

}  // namespace
}  // namespace headrace
