#include "runtime/text/split.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/text/document.h"

namespace headrace {
namespace {

int64_t bytes_of(std::string_view text) { return static_cast<int64_t>(text.size()); }

std::vector<std::string> split(const std::string& text, int64_t most, const CountTokens& count = bytes_of) {
  std::vector<std::string> parts;
  for (const std::string_view part : split_to_fit(text, most, count)) parts.emplace_back(part);
  return parts;
}

using Parts = std::vector<std::string>;

TEST(Split, AtTheBestBorderInTheSecondHalf) {
  EXPECT_EQ(split("one two", 7), (Parts{"one two"}));
  EXPECT_EQ(split("aaaa bbb.\n\ncc. dd\nee ff", 18), (Parts{"aaaa bbb.", "cc. dd\nee ff"}));
  EXPECT_EQ(split("aaaa bbbbb cc. dd\nee ff", 20), (Parts{"aaaa bbbbb cc. dd", "ee ff"}));
  EXPECT_EQ(split("aaaa bbbbb cc. dd ee ff", 20), (Parts{"aaaa bbbbb cc.", "dd ee ff"}));
  EXPECT_EQ(split("aaaa bbbbb ccc dd eeeff", 20), (Parts{"aaaa bbbbb ccc dd", "eeeff"}));
  EXPECT_EQ(split("a\n\nbbbbbbbbbbbbbbbbbbbb", 10), (Parts{"a\n\nbbbbbbb", "bbbbbbbbbb", "bbb"}));
}

TEST(Split, WhiteSpaceIsInNoPart) {
  EXPECT_EQ(split("\n\n  one\n\n\n \ntwo  \n", 5), (Parts{"one", "two"}));
  EXPECT_EQ(split(" \n\t", 5), Parts{});
  EXPECT_EQ(split("", 5), Parts{});
}

TEST(Split, CharactersStayWhole) {
  EXPECT_EQ(split("\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 7), (Parts{"\xe2\x82\xac\xe2\x82\xac", "\xe2\x82\xac"}));
  EXPECT_EQ(split("\xe2\x82\xac", 2), Parts{});
}

// Every letter is in a part, in order; every part fits; parts use the room, however dense the text is.
TEST(Split, LosesNothingAndWastesLittle) {
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += std::string(static_cast<size_t>(i * 7 % 11) + 1, static_cast<char>('a' + i % 26));
    text += i % 50 == 49 ? "\n\n" : i % 9 == 8 ? ". " : " ";
    if (i == 1500) text += std::string(9000, 'q');
  }
  const CountTokens half = [](std::string_view t) {  // capital letters aside, words of q cost a tenth
    int64_t tokens = 7;
    for (size_t i = 0; i < t.size(); ++i) tokens += t[i] != 'q' || i % 10 == 0 ? 1 : 0;
    return tokens;
  };
  for (const int64_t most : {100, 1000, 5000}) {
    std::string letters, wanted;
    const Parts parts = split(text, most, half);
    for (size_t i = 0; i < parts.size(); ++i) {
      EXPECT_LE(half(parts[i]), most);
      if (i + 1 < parts.size()) {
        EXPECT_GE(half(parts[i]), most * 2 / 5) << parts[i];
      }
      letters += parts[i];
    }
    for (std::string* both : {&letters, &wanted}) {
      if (both == &wanted) wanted = text;
      std::erase_if(*both, [](char c) { return c == ' ' || c == '\n'; });
    }
    EXPECT_EQ(letters, wanted);
  }
}

}  // namespace
}  // namespace headrace
