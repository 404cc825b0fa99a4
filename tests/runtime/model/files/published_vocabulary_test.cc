// Published vocabularies, as llama.cpp's source has them with texts and their ids (ggml-vocab-NAME.gguf, .inp, .out):
// each text has these ids, and they are its text. Skipped without a variable that names the file.
#include <gtest/gtest.h>

#include <cstdlib>
#include <iterator>
#include <sstream>

#include "runtime/base/input_file.h"
#include "runtime/model/gguf/gguf_vocabulary.h"
#include "runtime/text/tokenizer.h"

namespace headrace {
namespace {

Tokenizer vocabulary_of(const char* path) {
  const InputFile input(path);
  return Tokenizer::from_vocabulary(gguf_vocabulary(parse_gguf(input)));
}

void expect_published_ids(const Tokenizer& tokenizer, const std::string& path) {
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::string texts = read_small_file(path + ".inp", 1 << 20);
  std::istringstream lines(read_small_file(path + ".out", 1 << 20));
  size_t cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    const size_t end = texts.find(separator);
    const std::string text = texts.substr(0, end);
    std::istringstream numbers(line);
    const std::vector<int32_t> ids{std::istream_iterator<int32_t>(numbers), {}};
    EXPECT_EQ(tokenizer.encode(text, AddBos::kNo, SpecialTokens::kAsText), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), text);
    texts.erase(0, end == std::string::npos ? texts.size() : end + separator.size());
  }
  EXPECT_GE(cases, 40u);
}

TEST(PublishedVocabulary, Gemma4) {
  const char* const path = std::getenv("HEADRACE_TEST_GEMMA4_VOCAB");
  if (path == nullptr) GTEST_SKIP() << "HEADRACE_TEST_GEMMA4_VOCAB names no file";
  const Tokenizer tokenizer = vocabulary_of(path);
  expect_published_ids(tokenizer, path);
  const auto start = tokenizer.encode("<|turn>model\n", AddBos::kYes, SpecialTokens::kParse);
  EXPECT_EQ(start.front(), 2);
  EXPECT_EQ(start[1], 105);
}

TEST(PublishedVocabulary, Qwen35) {
  const char* const path = std::getenv("HEADRACE_TEST_QWEN35_VOCAB");
  if (path == nullptr) GTEST_SKIP() << "HEADRACE_TEST_QWEN35_VOCAB names no file";
  expect_published_ids(vocabulary_of(path), path);
}

}  // namespace
}  // namespace headrace
