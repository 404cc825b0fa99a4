// Where an answer thinks, and its two parts, however it is cut into pieces.
#include "runtime/text/thinking.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace headrace {
namespace {

const ThinkingMarks kMarks = {"<think>", "</think>"};

struct SplitCase {
  bool inside;
  std::string text, thinking, answer;
};

// The case's text, pushed in pieces of `size` bytes, has its two parts. order: thinking never follows an answer.
void expect_in_pieces(ThinkingPlace place, const SplitCase& one, size_t size, bool order) {
  std::string thinking, answer;
  const auto add = [&](const ThinkingPlace::Parts& parts) {
    if (order) {
      EXPECT_TRUE(parts.thinking.empty() || answer.empty()) << one.text;
    }
    thinking += parts.thinking;
    answer += parts.answer;
  };
  for (size_t at = 0; at < one.text.size(); at += size) add(place.push(std::string_view(one.text).substr(at, size)));
  add(place.finish());
  EXPECT_EQ(thinking, one.thinking) << one.text << " by " << size;
  EXPECT_EQ(answer, one.answer) << one.text << " by " << size;
}

const std::vector<SplitCase>& split_cases() {
  static const std::vector<SplitCase> all = {
      {false, "", "", ""},
      {false, "An answer.\n", "", "An answer.\n"},
      {false, "  \n An answer", "", "  \n An answer"},
      {false, "<thin air", "", "<thin air"},
      {false, "<thin", "", "<thin"},
      {false, "<think>\nWhy?\n\nSo.\n</think>\n\nYes. \n", "Why?\n\nSo.", "Yes. \n"},
      {false, "\n<think>a</think>b", "a", "b"},
      {false, "<think>\n\n</think>\n\nYes", "", "Yes"},
      {false, "Yes <think>a</think>", "", "Yes <think>a</think>"},
      {true, "Why?\n</think>\n\nYes", "Why?", "Yes"},
      {true, "\n Why </ think > < /think>\n", "Why </ think > < /think>", ""},
      {true, "a </thin b </think c </think> </think> d", "a </thin b </think c", "</think> d"},
      {true, "cut short </thi", "cut short </thi", ""},
      {true, "</think>", "", ""},
      {true, "a<</think>b", "a<", "b"},
  };
  return all;
}

TEST(Thinking, SplitsAText) {
  for (const SplitCase& one : split_cases()) {
    const ThinkingPlace::Parts parts = split_thinking(kMarks, one.inside, one.text);
    EXPECT_EQ(parts.thinking, one.thinking) << one.text;
    EXPECT_EQ(parts.answer, one.answer) << one.text;
  }
}

// Gemma 4's opening mark is a token and a word.
TEST(Thinking, MarksOfSeveralTokens) {
  const ThinkingMarks marks = {"<|channel>thought", "<channel|>"};
  ThinkingPlace::Parts parts = split_thinking(marks, false, "<|channel>thought\nWhy?\n<channel|>Yes");
  EXPECT_EQ(parts.thinking, "Why?");
  EXPECT_EQ(parts.answer, "Yes");
  parts = split_thinking(marks, false, "<|channel>other");
  EXPECT_EQ(parts.thinking, "");
  EXPECT_EQ(parts.answer, "<|channel>other");
}

const ThinkingMarks kChannels = {"<|channel|>analysis<|message|>",
                                 "<|end|><|start|>assistant<|channel|>final<|message|>", true};

const std::vector<SplitCase>& channel_cases() {
  static const std::vector<SplitCase> all = {
      {false, "", "", ""},
      {false, "An answer <|end|>", "", "An answer "},
      {false, "<|chan", "", "<|chan"},
      {false,
       "<|channel|>analysis<|message|>Why? So.<|end|><|start|>assistant<|channel|>final<|message|>Yes.\n<|return|>",
       "Why? So.", "Yes.\n"},
      {false, "<|channel|>final<|message|>Yes", "", "Yes"},
      {false, "<|channel|>final json<|message|>{}", "", "{}"},
      {false, "<|channel|>analysis<|message|>cut sho", "cut sho", ""},
      {false, "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>fin", "a", ""},
      {false, "<|channel|>analysis<|message|>a<|end", "a<|end", ""},
      {false,
       "<|channel|>analysis<|message|>a < b<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|><|start|>"
       "assistant<|channel|>final<|message|>c",
       "a < b\nb", "c"},
      {false,
       "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary to=f <|constrain|>json"
       "<|message|>{\"x\": 1}<|call|>",
       "a\n{\"x\": 1}", ""},
      {false, "<|channel|>final<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b", "b", "a"},
  };
  return all;
}

// Messages to tools, where an answer may call some: the form that the reader of calls knows.
TEST(Thinking, CallsInChannels) {
  const std::string analysis = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
                    want = R"(<tool_call>{"name": "f", "arguments": {"x": [1]}}</tool_call>)";
  const std::vector<SplitCase> cases = {
      {false, analysis + R"(<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": [1]}<|call|>)",
       "Hm.", want},
      {false, analysis + R"( to=functions.f<|channel|>commentary json<|message|>{"x": [1]})", "Hm.", want},
      {false, R"( to=functions.f<|channel|>commentary json<|message|>{"x": [1]}<|end|>)", "", want},
      {false,
       analysis + "<|channel|>commentary<|message|>I ask.<|end|><|start|>assistant to=functions.f<|channel|>"
                  "commentary<|message|> \n<|call|>",
       "Hm.\nI ask.", "<tool_call>{\"name\": \"f\", \"arguments\":  \n{}}</tool_call>"},
      {false,
       R"(<|channel|>commentary to=functions.f<|message|>{}<|end|><|start|>assistant<|channel|>commentary )"
       R"(to=functions.g<|message|>{}<|call|>)",
       "",
       "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
       "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>"},
      {false, "<|channel|>commentary to=browser.open<|message|>{}<|call|>", "{}", ""},
      {false, "<|channel|>final<|message|>A to=functions.f text", "", "A to=functions.f text"},
      {false, " to be", "", " to be"},
      {false, " to", "", " to"}};
  for (const SplitCase& one : cases) {
    for (size_t step : {size_t{1}, size_t{3}, size_t{7}, one.text.size() + 1}) {
      ThinkingPlace place(kChannels, one.inside);
      place.show_calls();
      expect_in_pieces(place, one, step, false);
    }
    EXPECT_EQ(split_thinking(kChannels, one.inside, one.text, true).answer, one.answer);
  }
  // Where there are no tools, such a message is thinking.
  EXPECT_EQ(split_thinking(kChannels, false, cases[0].text).thinking, "Hm.\n{\"x\": [1]}");
  EXPECT_EQ(split_thinking(kChannels, false, cases[0].text).answer, "");
}

// Of gpt-oss, whose answer is the channel "final", also in pieces of any size.
TEST(Thinking, ChannelsOfAnAnswer) {
  for (const SplitCase& one : channel_cases()) {
    for (size_t step : {size_t{1}, size_t{3}, size_t{7}, one.text.size() + 1}) {
      expect_in_pieces(ThinkingPlace(kChannels, one.inside), one, step, false);
    }
  }
}

TEST(Thinking, AnAnswersPlaceAmongChannels) {
  using Place = ThinkingPlace::Place;
  ThinkingPlace place(kChannels, false);
  EXPECT_EQ(place.place(), Place::kBefore);
  place.push(kChannels.open);
  EXPECT_EQ(place.place(), Place::kInside);
  place.push("a");
  place.push(kChannels.close);
  EXPECT_EQ(place.place(), Place::kAfter);
}

// Nothing that was passed on is taken back, wherever the text is cut.
TEST(Thinking, SplitsPiecesAsTheWhole) {
  for (const SplitCase& one : split_cases()) {
    for (size_t size = 1; size <= 9; ++size) expect_in_pieces(ThinkingPlace(kMarks, one.inside), one, size, true);
  }
}

// Letters, and a token for each mark or none.
Tokenizer letters_and_marks(bool with_marks, const std::string& open = "<think>",
                            const std::string& close = "</think>") {
  Vocabulary v;
  v.source = "letters";
  v.model = "gpt2";
  v.pre = "gpt-2";
  for (const char letter : std::string("abc<>/think")) {
    const std::string text(1, letter);
    if (std::find(v.tokens.begin(), v.tokens.end(), text) == v.tokens.end()) v.tokens.push_back(text);
  }
  v.tokens.insert(v.tokens.end(), {"\xc4\x8a", "ab"});  // a line's end
  v.types.assign(v.tokens.size(), 1);
  if (with_marks) v.tokens.insert(v.tokens.end(), {open, close});
  if (with_marks) v.types.insert(v.types.end(), {3, 3});
  v.merges = {"a b"};
  return Tokenizer::from_vocabulary(v);
}

TEST(Thinking, TheTemplateNamesTheMarks) {
  const Tokenizer none = letters_and_marks(false), some = letters_and_marks(true),
                  other = letters_and_marks(true, "[THINK]", "[/THINK]");
  EXPECT_FALSE(thinking_marks(none, "{{ messages }}"));
  EXPECT_EQ(thinking_marks(none, "{{ x.split('</think>') }}")->open, "<think>");
  EXPECT_EQ(thinking_marks(some, "")->close, "</think>");
  EXPECT_EQ(thinking_marks(other, "")->close, "[/THINK]");
  EXPECT_EQ(thinking_marks(some, "<seed:think> </seed:think>")->open, "<seed:think>");
}

TEST(Thinking, APromptMayOpenIt) {
  const Tokenizer tokens = letters_and_marks(true), pieces = letters_and_marks(false);
  for (const Tokenizer* tokenizer : {&tokens, &pieces}) {
    const auto opens = [&](const std::string& text) {
      return ends_with_open_mark(*tokenizer, kMarks, tokenizer->encode(text, AddBos::kNo, SpecialTokens::kParse));
    };
    EXPECT_TRUE(opens("ab<think>"));
    EXPECT_TRUE(opens("ab<think>\n\n"));
    EXPECT_FALSE(opens("ab<think>\n\n</think>\n\n"));
    EXPECT_FALSE(opens("<think>a"));
    EXPECT_FALSE(opens("think>"));
    EXPECT_FALSE(opens("\n\n"));
  }
}

}  // namespace
}  // namespace headrace
