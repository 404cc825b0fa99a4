// Tokenising is linear, near enough: text made to be slow takes seconds at most, under sanitizers too. (How fast it is
// on a book: docs/measuring.md; the bound here only catches what grows with the square.)
#include <gtest/gtest.h>

#include <chrono>

#include "tests/runtime/text/text_test_support.h"

namespace headrace {
namespace {

struct Text {
  const char* name;
  std::string text;
};

std::string repeated(const std::string& unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += unit;
  return out;
}

std::vector<Text> slow_texts() {
  constexpr size_t kBytes = 1000000;
  std::string letters;
  for (uint32_t state = 1; letters.size() < kBytes; state = state * 1664525 + 1013904223)
    letters.push_back(static_cast<char>('a' + (state >> 16) % 26));
  return {{"one letter", std::string(kBytes, 'a')},
          {"spaces", std::string(kBytes, ' ')},
          {"spaces, then a word", std::string(kBytes, ' ') + "x"},
          {"line breaks", std::string(kBytes, '\n')},
          {"one random word", letters},
          {"marks in the wrong order", repeated("\u0301\u0316", kBytes)},
          {"marks that decompose", repeated("\u0f73", kBytes)},
          {"half markers", repeated("<|", kBytes)},
          {"markers", repeated("<|im_end|>a", kBytes)},
          {"bytes that are no UTF-8", std::string(kBytes, '\xff')},
          {"prose", repeated("The channel brings water to the turbine; 42 of them do, don't they?\n", kBytes)}};
}

// Gemma 4's, whose words are lines: the llama2 vocabulary by its merges.
Tokenizer by_lines() {
  const testing::Json json = testing::read_json("llama2.tokenizer.json");
  Vocabulary out;
  out.source = "model.gguf";
  out.model = "gemma4";
  out.tokens.resize(json["model"]["vocab"].size());
  out.types.assign(out.tokens.size(), 1);
  for (const auto& [name, id] : json["model"]["vocab"].items()) out.tokens[id.get<size_t>()] = name;
  for (size_t i = 3; i < 259; ++i) out.types[i] = 6;
  for (const testing::Json& merge : json["model"]["merges"])
    out.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  return Tokenizer::from_vocabulary(out);
}

TEST(TokenizerSpeed, NoTextIsQuadratic) {
  for (const char* family : {"gpt2", "llama3", "qwen2", "llama2", "gemma4"}) {
    const Tokenizer tokenizer = std::string_view(family) == "gemma4"
                                    ? by_lines()
                                    : testing::load(testing::read_json(std::string(family) + ".tokenizer.json"));
    for (const auto& [name, text] : slow_texts()) {
      const auto start = std::chrono::steady_clock::now();
      const auto ids = testing::encode(tokenizer, text);
      const std::string decoded = tokenizer.decode(ids);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      EXPECT_LT(seconds.count(), 20) << family << ", " << name;
      if (text.find('\xff') == std::string::npos && std::string(name).rfind("marks", 0) != 0) {
        EXPECT_EQ(decoded, text) << family << ", " << name;
      }
    }
  }
}

}  // namespace
}  // namespace headrace
