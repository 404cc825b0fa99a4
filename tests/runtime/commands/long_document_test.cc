// Documents longer than the context: the parts, the answers to answers, and when there is no end to it.
#include "runtime/commands/long_document.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/support/refusal.h"

namespace headrace {
namespace {

using testing_support::expect_error;

std::vector<int32_t> one_token_a_byte(std::string_view text) { return {text.begin(), text.end()}; }

struct Call {
  std::string prompt;
  PartLabel label;
};

// A model of one token a byte whose answer is the first `keeps` letters of its prompt.
GenerateResult answer(const std::string& text, int64_t context, size_t keeps, std::vector<Call>* calls) {
  const PromptRules rules{.instruction = "?", .context_tokens = context, .answer_tokens = 10};
  return answer_long("doc", text, rules, one_token_a_byte,
                     [&](const std::vector<int32_t>& ids, const PartLabel& label) {
                       GenerateResult result;
                       const std::string prompt(ids.begin(), ids.end());
                       calls->push_back({prompt, label});
                       result.text = prompt.substr(0, keeps);
                       result.prompt_tokens = static_cast<int64_t>(ids.size());
                       return result;
                     });
}

TEST(LongDocument, WhatFitsIsAnsweredAtOnce) {
  std::vector<Call> calls;
  const GenerateResult result = answer("short", 20, 3, &calls);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].prompt, "short?");
  EXPECT_TRUE(calls[0].label.last);
  EXPECT_TRUE(result.parts.empty());
}

TEST(LongDocument, PartsAreAnsweredThenTheirAnswers) {
  std::vector<Call> calls;
  const std::string text = "first part of it\n\nsecond part here\n\nthird part there";
  const GenerateResult result = answer(text, 30, 5, &calls);
  ASSERT_EQ(calls.size(), 4u);
  EXPECT_EQ(calls[0].prompt, "first part of it?");
  EXPECT_EQ(calls[1].prompt, "second part here?");
  EXPECT_EQ(calls[2].label.part, 3);
  EXPECT_EQ(calls[2].label.parts, 3);
  EXPECT_FALSE(calls[2].label.last);
  EXPECT_EQ(calls[3].prompt, "first\n\nsecon\n\nthird?");
  EXPECT_EQ(result.text, "first");
  ASSERT_EQ(result.parts.size(), 3u);
  for (const PartAnswer& part : result.parts) {
    EXPECT_EQ(part.level, 1);
    EXPECT_EQ(text.substr(part.first_byte, 5), part.text);
    EXPECT_EQ(part.prompt_tokens, static_cast<int64_t>(part.bytes) + 1);
  }
}

// The last part is not what happens to be left, and each says what it took.
TEST(LongDocument, PartsAreOfAboutTheSameSize) {
  std::vector<Call> calls;
  std::string text;
  for (int i = 0; i < 22; ++i) text += "paragraph " + std::to_string(10 + i) + "\n\n";  // of 14, 3 or 4 fit a part
  const GenerateResult result = answer(text, 75, 3, &calls);
  size_t shortest = text.size(), longest = 0;
  int64_t parts = 0;
  for (const PartAnswer& part : result.parts) {
    if (part.level != 1) continue;
    ++parts;
    shortest = std::min<size_t>(shortest, part.bytes), longest = std::max<size_t>(longest, part.bytes);
  }
  EXPECT_EQ(parts, 6);
  EXPECT_LE(longest - shortest, 14u) << shortest << " to " << longest;
  const PartTotals all = totals_of(result.parts);
  EXPECT_EQ(all.cut, static_cast<int64_t>(result.parts.size()));  // as the finish reason of these answers is kLength
  int64_t read = 0;
  for (const PartAnswer& part : result.parts) read += part.prompt_tokens;
  EXPECT_EQ(all.prompt_tokens, read);
}

TEST(LongDocument, AsOftenAsNeeded) {
  std::vector<Call> calls;
  std::string text;
  for (int i = 0; i < 40; ++i) text += "paragraph " + std::to_string(i) + " says this\n\n";
  const GenerateResult result = answer(text, 60, 10, &calls);
  EXPECT_GT(result.parts.back().level, 1);
  EXPECT_TRUE(calls.back().label.last);
  for (const Call& call : calls) EXPECT_LE(call.prompt.size(), 50u);
}

TEST(LongDocument, AnswersThatDoNotGetShorterAreAnError) {
  std::vector<Call> calls;
  expect_error(ExitCode::kBadInput, "doc", {"the answers to its", "again"},
               [&] { answer(std::string(400, 'x'), 40, 100, &calls); });
  expect_error(ExitCode::kBadInput, "doc", {"cannot be split", "of 11 tokens"},
               [&] { answer(std::string(400, 'x'), 11, 1, &calls); });
}

TEST(LongDocument, AnInterruptedPartEndsIt) {
  int calls = 0;
  const PromptRules rules{.instruction = "?", .context_tokens = 40, .answer_tokens = 10};
  const GenerateResult result = answer_long("doc", std::string(100, 'x'), rules, one_token_a_byte,
                                            [&calls](const std::vector<int32_t>&, const PartLabel&) {
                                              GenerateResult part;
                                              if (++calls == 2) part.finish_reason = FinishReason::kInterrupted;
                                              part.text = "x";
                                              return part;
                                            });
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(result.finish_reason, FinishReason::kInterrupted);
}

}  // namespace
}  // namespace headrace
