// Stop texts: where the answer ends, and what is told before it is certain.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/engine/output.h"
#include "runtime/text/vocabulary.h"

namespace headrace {
namespace {

// Tokens "a", "b" and "c", "é" in two, and what a vocabulary must have: a merge.
Tokenizer letters() {
  Vocabulary v;
  v.source = "letters";
  v.model = "gpt2";
  v.pre = "gpt-2";
  v.tokens = {"a", "b", "c", "\xc3\x83", "\xc2\xa9", "ab"};
  v.types = {1, 1, 1, 1, 1, 1};
  v.merges = {"a b"};
  return Tokenizer::from_vocabulary(v);
}

struct Said {
  std::vector<std::string> pieces;
  GenerateResult result;
  size_t taken = 0;  // tokens until take() was false
};

Said say(const std::vector<int32_t>& tokens, std::vector<std::string> stop, int64_t most = 100) {
  const Tokenizer tokenizer = letters();
  const std::vector<int32_t> ends;
  Said said;
  GenerateOptions options;
  options.stop = std::move(stop);
  options.on_text = [&said](std::string_view text) { said.pieces.emplace_back(text); };
  Output output(&tokenizer, ends, options, most);
  for (const int32_t token : tokens) {
    ++said.taken;
    if (!output.take(token)) break;
  }
  output.finish(&said.result);
  return said;
}

std::string joined(const std::vector<std::string>& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

constexpr int32_t a = 0, b = 1, c = 2;

TEST(StopTexts, EndTheAnswerWhereTheFirstBegins) {
  const Said said = say({a, b, a, b, c, a}, {"bc", "abc"});
  EXPECT_EQ(said.result.text, "ab");
  EXPECT_EQ(said.taken, 5u);
  EXPECT_EQ(said.result.token_ids.size(), 5u);
  EXPECT_EQ(said.result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(joined(said.pieces), "ab");
}

// "aab" within "aaab": the beginning that fails must not hide the one that follows.
TEST(StopTexts, AreFoundBehindABeginningThatFails) {
  const Said said = say({a, a, a, b, c}, {"aab"});
  EXPECT_EQ(said.result.text, "a");
  EXPECT_EQ(said.pieces, (std::vector<std::string>{"a"}));
}

TEST(StopTexts, WhatMayBeginOneIsToldWhenItIsNone) {
  const Said said = say({b, a, c, a}, {"ab"});
  EXPECT_EQ(said.pieces, (std::vector<std::string>{"b", "ac", "a"}));
  EXPECT_EQ(said.result.text, "baca");
  EXPECT_EQ(said.result.finish_reason, FinishReason::kLength);
}

TEST(StopTexts, OnTheLastTokenIsAStopAndNotTheLength) {
  EXPECT_EQ(say({a, b}, {"b"}, 2).result.finish_reason, FinishReason::kStop);
  EXPECT_EQ(say({a, b}, {"c"}, 2).result.finish_reason, FinishReason::kLength);
}

TEST(StopTexts, OfSeveralBytesComeFromSeveralTokens) {
  const Said said = say({a, 3, 4, b}, {"\xc3\xa9"});
  EXPECT_EQ(said.result.text, "a");
  EXPECT_EQ(said.taken, 3u);
}

// Tokens with log-probabilities are told with the text that they add, and those of a stop text never.
TEST(StopTexts, TokensComeWithTheirText) {
  const Tokenizer tokenizer = letters();
  const std::vector<int32_t> ends;
  GenerateOptions options;
  options.log_probs = LogProbs::kComputed;
  options.top_tokens = 1;
  options.stop = {"cb"};
  std::string told;
  options.on_token = [&told](const AnswerToken& token) { told += "[" + std::to_string(token.chosen.id) + "]"; };
  options.on_text = [&told](std::string_view text) { told += text; };
  Output output(&tokenizer, ends, options, 100);
  const std::vector<int32_t> likeliest = {a, b};
  const std::vector<float> log_probs = {-0.5f, -1.5f};
  bool going = true;
  for (const int32_t token : {a, 3, 4, c, a, c, b}) {
    EXPECT_TRUE(going);
    going = output.take(token, {.sample = -9, .tokens = likeliest, .log_probs = log_probs});
  }
  EXPECT_FALSE(going);
  GenerateResult result;
  output.finish(&result);
  EXPECT_EQ(told, "[0]a[3][4]\xc3\xa9[2][0]ca");
  EXPECT_EQ(result.text,
            "a\xc3\xa9"
            "ca");
  ASSERT_EQ(result.answer.size(), 5u);
  EXPECT_EQ(result.token_ids.size(), 7u);
  std::vector<uint64_t> bytes, characters;
  for (const AnswerToken& token : result.answer) {
    bytes.push_back(token.first_byte);
    characters.push_back(token.first_character);
    ASSERT_EQ(token.top.size(), 1u);
    EXPECT_EQ(token.top[0].bytes, "a");
    EXPECT_EQ(token.chosen.log_prob, token.chosen.id == a ? -0.5f : -9.0f);
  }
  EXPECT_EQ(bytes, (std::vector<uint64_t>{0, 1, 1, 3, 4}));
  EXPECT_EQ(characters, (std::vector<uint64_t>{0, 1, 1, 2, 3}));
  EXPECT_EQ(result.answer[1].chosen.bytes, "\xc3");
}

TEST(StopTexts, NoneAsBefore) {
  const Said said = say({a, b, c}, {});
  EXPECT_EQ(said.pieces, (std::vector<std::string>{"a", "b", "c"}));
}

}  // namespace
}  // namespace headrace
