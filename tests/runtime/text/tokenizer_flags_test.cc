// Added tokens' flags, Metaspace, unknown characters and broken byte runs, as the reference does them
// (tests/data/tokenizers/flags.json, by make_flags_golden.py); special tokens as text; input that is not UTF-8.
#include <gtest/gtest.h>

#include "tests/runtime/text/text_test_support.h"

namespace headrace {
namespace {

using testing::encode;
using testing::Json;
using Ids = std::vector<int32_t>;

std::string streamed(const Tokenizer& tokenizer, const Ids& ids, SpecialTokens special) {
  StreamingDecoder stream(tokenizer, special);
  std::string text;
  for (int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

void expect_rows(const Tokenizer& tokenizer, const Json& one) {
  for (const Json& row : one.at("rows")) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = row.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.encode(text, AddBos::kYes, SpecialTokens::kParse), ids) << text;
    EXPECT_EQ(encode(tokenizer, text, SpecialTokens::kAsText), row.at("as_text").get<Ids>()) << text;
    if (!row.contains("decoded")) continue;
    EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").get<std::string>());
    EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kParse), row.at("decoded_plain").get<std::string>());
    EXPECT_EQ(streamed(tokenizer, ids, SpecialTokens::kParse), row.at("decoded_plain").get<std::string>());
  }
  for (const Json& row : one.at("decodes")) {
    const auto ids = row.at("ids").get<Ids>();
    EXPECT_EQ(tokenizer.decode(ids), row.at("decoded").get<std::string>());
    EXPECT_EQ(streamed(tokenizer, ids, SpecialTokens::kAsText), row.at("decoded").get<std::string>());
  }
}

TEST(TokenizerFlags, EqualTheReference) {
  const Json cases = testing::read_json("flags.json");
  ASSERT_EQ(cases.size(), 37u);
  for (const Json& one : cases) {
    SCOPED_TRACE(one.at("name").get<std::string>());
    Json json = testing::read_json(one.at("base").get<std::string>() + ".tokenizer.json");
    for (const auto& [pointer, value] : one.at("changes").items()) json[Json::json_pointer("/" + pointer)] = value;
    expect_rows(testing::load(json), one);
  }
}

TEST(Tokenizer, MarkupAddedAsOrdinaryTokenIsTextInUsersText) {
  Json json = testing::read_json("qwen2.tokenizer.json");
  for (const auto& [id, name] : std::vector<std::pair<int, std::string>>{{2003, "<think>"}, {2004, "    "}})
    json["added_tokens"].push_back({{"id", id}, {"content", name}, {"special", false}, {"normalized", false}});
  const Tokenizer tokenizer = testing::load(json);
  EXPECT_EQ(encode(tokenizer, "<think>"), Ids{2003});
  EXPECT_GT(encode(tokenizer, "<think>", SpecialTokens::kAsText).size(), 1u);
  EXPECT_EQ(encode(tokenizer, "    ", SpecialTokens::kAsText), Ids{2004});  // a run of spaces is no marker
  EXPECT_FALSE(tokenizer.is_special(2003));
}

// A word that is a special token's name, or that merges would make, is still text.
TEST(Tokenizer, NoWayFromTextToASpecialToken) {
  Json json = testing::read_json("llama3.tokenizer.json");
  const int32_t the = json["model"]["vocab"]["the"], he = json["model"]["vocab"]["he"];
  for (int32_t id : {the, he})
    json["added_tokens"].push_back({{"id", id}, {"content", id == the ? "the" : "he"}, {"special", true}});
  for (bool ignore_merges : {true, false}) {
    json["model"]["ignore_merges"] = ignore_merges;
    const Tokenizer tokenizer = testing::load(json);
    for (const char* text : {"the", "he", "xthe", "the the", "hehehe"})
      for (int32_t id : encode(tokenizer, text, SpecialTokens::kAsText)) EXPECT_FALSE(tokenizer.is_special(id)) << text;
  }
}

TEST(Tokenizer, PartsAreOneText) {
  const Tokenizer tokenizer = testing::load(testing::read_json("gpt2.tokenizer.json"));
  const std::vector<TextPart> parts = {{"<|endoftext|>the b", SpecialTokens::kParse},
                                       {"ook <|endoftext|> and", SpecialTokens::kAsText},
                                       {"<|endoftext|>", SpecialTokens::kParse}};
  Ids expected = encode(tokenizer, "the book <|endoftext|> and", SpecialTokens::kAsText);
  expected.insert(expected.begin(), 2000);
  expected.push_back(2000);
  EXPECT_EQ(tokenizer.encode(parts, AddBos::kNo), expected);
  // A marker put together out of both is the user's.
  for (int32_t id : tokenizer.encode({TextPart{"<|endof", SpecialTokens::kParse}, TextPart{"text|>"}}, AddBos::kNo))
    EXPECT_NE(id, 2000);
}

TEST(Tokenizer, InvalidUtf8IsTheReplacementCharacter) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"\xff", "\uFFFD"},
                                                                  {"a\xc3", "a\uFFFD"},
                                                                  {"\xe6\x97x", "\uFFFDx"},
                                                                  {"\xed\xa0\x80", "\uFFFD\uFFFD\uFFFD"},
                                                                  {"\xf4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
                                                                  {"\xc0\x80", "\uFFFD\uFFFD"},
                                                                  {"\xf0\x9f\x99\xf0\x9f\x99\x82", "\uFFFD\U0001F642"}};
  for (const char* family : {"gpt2", "llama2"}) {
    const Tokenizer tokenizer = testing::load(testing::read_json(std::string(family) + ".tokenizer.json"));
    for (const auto& [bytes, text] : cases) EXPECT_EQ(encode(tokenizer, bytes), encode(tokenizer, text));
  }
}

TEST(Tokenizer, IdsWithoutATokenHaveNoText) {
  const Tokenizer tokenizer = testing::load(testing::read_json("gpt2.tokenizer.json"));
  EXPECT_EQ(tokenizer.decode({-1, 2001, INT32_MAX, INT32_MIN}), "");
  EXPECT_EQ(tokenizer.token_name(99999), "");
  EXPECT_EQ(tokenizer.find(""), -1);
  EXPECT_EQ(tokenizer.find("<|endoftext|>"), 2000);
  EXPECT_EQ(tokenizer.size(), 2001);
  EXPECT_FALSE(tokenizer.is_special(-1));
}

TEST(StreamingDecoder, NeverHalfACharacter) {
  for (const char* family : {"gpt2", "llama2"}) {
    const Tokenizer tokenizer = testing::load(testing::read_json(std::string(family) + ".tokenizer.json"));
    const std::string text = "na\u00efve \u65e5\u672c\u8a9e \U0001F642\U0001F469\u200D\U0001F467";
    StreamingDecoder stream(tokenizer);
    std::string all;
    for (int32_t id : encode(tokenizer, text)) {
      const std::string part = stream.push(id);
      EXPECT_EQ(part.find("\uFFFD"), std::string::npos);
      all += part;
      EXPECT_EQ(text.compare(0, all.size(), all), 0);
      EXPECT_TRUE(all.size() == text.size() || (text[all.size()] & 0xC0) != 0x80) << all;
    }
    EXPECT_EQ(all + stream.finish(), text);
  }
}

}  // namespace
}  // namespace headrace
