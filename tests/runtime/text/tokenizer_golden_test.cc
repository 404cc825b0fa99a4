// Ids and decoded text of 287 hard texts equal the reference's (tests/data/tokenizers, made with the Hugging Face
// `tokenizers` library).
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/text/tokenizer.h"

namespace headrace {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string data(const std::string& name) { return HEADRACE_TEST_DATA "/tokenizers/" + name; }

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

void expect_golden(const Tokenizer& tokenizer, const std::string& family) {
  const auto rows = nlohmann::json::parse(read_file(data(family + ".ids.json")));
  ASSERT_EQ(rows.size(), 287u);
  for (const auto& row : rows) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = row.at("ids_no_special").get<std::vector<int32_t>>();
    const auto decoded = row.at("decoded").get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, AddBos::kYes, SpecialTokens::kParse), row.at("ids").get<std::vector<int32_t>>())
        << text;
    EXPECT_EQ(tokenizer.encode(text, AddBos::kNo, SpecialTokens::kParse), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), decoded);
    StreamingDecoder stream(tokenizer, SpecialTokens::kAsText);
    std::string streamed;
    for (int32_t id : ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), decoded);
    for (int32_t id : tokenizer.encode(text, AddBos::kNo, SpecialTokens::kAsText))
      EXPECT_FALSE(tokenizer.is_special(id)) << text;
  }
}

TEST_P(GoldenTokenizer, IdsAndText) {
  const std::string path = data(std::string(GetParam()) + ".tokenizer.json");
  expect_golden(Tokenizer::from_json(read_file(path), path), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizer, ::testing::Values("gpt2", "llama3", "qwen2", "llama2"),
                         [](const auto& family) { return std::string(family.param); });

}  // namespace
}  // namespace headrace
