// Ids and decoded text of 287 hard texts equal the reference's (tests/data/tokenizers, made with the Hugging Face
// `tokenizers` library), from tokenizer.json and from the same vocabulary as a GGUF file has it.
#include <gtest/gtest.h>

#include "tests/runtime/text/text_test_support.h"

namespace headrace {
namespace {

using testing::Json;

class GoldenTokenizer : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTokenizer, FromJson) {
  const std::string path = testing::data_path(std::string(GetParam()) + ".tokenizer.json");
  testing::expect_golden(Tokenizer::from_json(testing::read_file(path), path), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizer,
                         ::testing::Values("gpt2", "llama3", "qwen2", "tekken", "o200k", "llama2"),
                         [](const auto& family) { return std::string(family.param); });

// Merges as "a b" in one string: the older form of the file.
TEST(GoldenTokenizers, MergesAsStrings) {
  Json json = testing::read_json("gpt2.tokenizer.json");
  for (Json& merge : json["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  testing::expect_golden(testing::load(json), "gpt2");
}

Vocabulary vocabulary_of(const Json& json, const std::string& pre) {
  Vocabulary out;
  out.source = "model.gguf";
  out.model = "gpt2";
  out.pre = pre;
  const Json& model = json["model"];
  size_t size = model["vocab"].size();
  for (const Json& token : json["added_tokens"]) size = std::max(size, token["id"].get<size_t>() + 1);
  out.tokens.resize(size);
  out.types.assign(size, 1);
  for (const auto& [name, id] : model["vocab"].items()) out.tokens[id.get<size_t>()] = name;
  for (const Json& token : json["added_tokens"]) {
    out.tokens[token["id"].get<size_t>()] = token["content"];
    out.types[token["id"].get<size_t>()] = 3;
  }
  for (const Json& merge : model["merges"])
    out.merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  return out;
}

TEST(GoldenTokenizers, FromVocabulary) {
  testing::expect_golden(Tokenizer::from_vocabulary(vocabulary_of(testing::read_json("gpt2.tokenizer.json"), "gpt-2")),
                         "gpt2");
  testing::expect_golden(Tokenizer::from_vocabulary(vocabulary_of(testing::read_json("qwen2.tokenizer.json"), "qwen2")),
                         "qwen2");
  Vocabulary llama3 = vocabulary_of(testing::read_json("llama3.tokenizer.json"), "llama-bpe");
  llama3.bos = 2000;
  testing::expect_golden(Tokenizer::from_vocabulary(llama3), "llama3");
  Vocabulary tekken = vocabulary_of(testing::read_json("tekken.tokenizer.json"), "tekken");
  tekken.bos = 1;
  testing::expect_golden(Tokenizer::from_vocabulary(tekken), "tekken");
  testing::expect_golden(
      Tokenizer::from_vocabulary(vocabulary_of(testing::read_json("o200k.tokenizer.json"), "gpt-4o")), "o200k");
}

// Families that have no vocabulary of their own here: their split pattern and settings, with another's.
TEST(GoldenTokenizers, PreTokenizersByName) {
  for (const Json& one : testing::read_json("flags.json")) {
    const auto name = one.at("name").get<std::string>();
    if (!name.starts_with("pre ")) continue;
    const Json base = testing::read_json(one.at("base").get<std::string>() + ".tokenizer.json");
    const Tokenizer tokenizer = Tokenizer::from_vocabulary(vocabulary_of(base, name.substr(4)));
    ASSERT_EQ(one.at("rows").size(), 60u) << name;
    for (const Json& row : one.at("rows")) {
      const auto text = row.at("text").get<std::string>();
      EXPECT_EQ(tokenizer.encode(text, AddBos::kYes, SpecialTokens::kParse), row.at("ids").get<std::vector<int32_t>>())
          << name << ": " << text;
    }
  }
}

// The SentencePiece family has scores instead of merges. Reference: the same vocabulary with the merges that the scores
// stand for (every pair of tokens whose join is a token, best score first), as tokenizer.json.
struct SentencePiece {
  Json json = testing::read_json("llama2.tokenizer.json");
  Vocabulary vocabulary;
};
SentencePiece sentencepiece() {
  SentencePiece both;
  Json& json = both.json;
  Vocabulary vocabulary = vocabulary_of(json, "");
  vocabulary.model = "llama";
  vocabulary.merges.clear();
  vocabulary.unk = 0;
  vocabulary.bos = 1;
  vocabulary.types[0] = 2;
  std::map<std::string, size_t> order;  // a token's rank: that of the first merge that makes it
  const Json& merges = json["model"]["merges"];
  for (size_t i = 0; i < merges.size(); ++i)
    order.emplace(merges[i][0].get<std::string>() + merges[i][1].get<std::string>(), i);
  for (size_t i = 0; i < vocabulary.tokens.size(); ++i) {
    const auto found = order.find(vocabulary.tokens[i]);
    vocabulary.scores.push_back(found == order.end() ? -10000.f : -static_cast<float>(found->second));
    if (i >= 3 && i < 259) vocabulary.types[i] = 6;
  }
  Json all = Json::array();
  std::vector<std::pair<size_t, std::string>> ranked;
  for (const auto& [token, rank] : order) ranked.emplace_back(rank, token);
  std::sort(ranked.begin(), ranked.end());
  for (const auto& [rank, token] : ranked)
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const std::string left = token.substr(0, cut), right = token.substr(cut);
      if (json["model"]["vocab"].contains(left) && json["model"]["vocab"].contains(right)) all.push_back({left, right});
    }
  json["model"]["merges"] = all;
  both.vocabulary = std::move(vocabulary);
  return both;
}

TEST(GoldenTokenizers, SentencePieceFromVocabulary) {
  const SentencePiece both = sentencepiece();
  const Tokenizer reference = testing::load(both.json), ours = Tokenizer::from_vocabulary(both.vocabulary);
  for (const Json& row : testing::read_json("llama2.ids.json")) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = testing::encode(reference, text);
    EXPECT_EQ(testing::encode(ours, text), ids) << text;
    EXPECT_EQ(ours.decode(ids), row.at("decoded").get<std::string>());
  }
  EXPECT_EQ(ours.encode("a", AddBos::kYes, SpecialTokens::kParse)[0], 1);
}

// Gemma's: no space is put before a text, and none is taken away when it is decoded. Its tokenizer.json cuts at spaces,
// of which none is left.
TEST(GoldenTokenizers, SentencePieceWithoutASpacePrefix) {
  SentencePiece both = sentencepiece();
  both.json["normalizer"] = both.json["normalizer"]["normalizers"][1];
  both.json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"String", " "}}}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  Json& decoders = both.json["decoder"]["decoders"];
  decoders.erase(decoders.size() - 1);  // Strip
  both.vocabulary.add_space_prefix = false;
  const Tokenizer reference = testing::load(both.json), ours = Tokenizer::from_vocabulary(both.vocabulary);
  size_t whole = 0;
  for (const Json& row : testing::read_json("llama2.ids.json")) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = testing::encode(reference, text, SpecialTokens::kAsText);
    EXPECT_EQ(testing::encode(ours, text, SpecialTokens::kAsText), ids) << text;
    EXPECT_EQ(ours.decode(ids), reference.decode(ids)) << text;
    whole += reference.decode(ids) == text ? 1 : 0;  // but what looks like the mark of a space
  }
  EXPECT_GT(whole, 270u);
  EXPECT_EQ(ours.decode(testing::encode(ours, " a")), " a");
  EXPECT_NE(testing::encode(ours, " a"), testing::encode(ours, "a"));
}

// Gemma 4's has merges, as its tokenizer.json, but none of them crosses the end of a line.
struct Gemma4Vocabulary {
  Json json = testing::read_json("llama2.tokenizer.json");
  Vocabulary vocabulary;

  Gemma4Vocabulary() {
    json["normalizer"] = json["normalizer"]["normalizers"][1];
    Json& decoders = json["decoder"]["decoders"];
    decoders.erase(decoders.size() - 1);  // Strip
    vocabulary = vocabulary_of(json, "");
    vocabulary.model = "gemma4";
    vocabulary.unk = 0;
    vocabulary.bos = 1;
    for (size_t i = 3; i < 259; ++i) vocabulary.types[i] = 6;
  }
};

TEST(GoldenTokenizers, Gemma4ByMerges) {
  Gemma4Vocabulary both;
  both.vocabulary.add_bos = false;  // BOS begins every text all the same
  const Tokenizer reference = testing::load(both.json), ours = Tokenizer::from_vocabulary(both.vocabulary);
  size_t lines = 0;
  for (const Json& row : testing::read_json("llama2.ids.json")) {
    const auto text = row.at("text").get<std::string>();
    std::vector<int32_t> expected;
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end, ++lines) {
      const bool in_line = text[begin] != '\n';
      end = std::min(text.size(), in_line ? text.find('\n', begin) : text.find_first_not_of('\n', begin));
      const auto ids = testing::encode(reference, text.substr(begin, end - begin), SpecialTokens::kAsText);
      expected.insert(expected.end(), ids.begin(), ids.end());
    }
    const auto ids = testing::encode(ours, text, SpecialTokens::kAsText);
    EXPECT_EQ(ids, expected) << text;
    EXPECT_EQ(ours.decode(ids), reference.decode(ids)) << text;
  }
  EXPECT_GT(lines, 400u);
  EXPECT_EQ(ours.encode("a", AddBos::kYes, SpecialTokens::kParse)[0], 1);
}

// A run of line ends that is a token is one, whatever the merges make of it; a longer run is not.
TEST(GoldenTokenizers, Gemma4TakesLineEndsAsAWhole) {
  Gemma4Vocabulary both;
  const auto five = static_cast<int32_t>(both.vocabulary.tokens.size());
  const Tokenizer before = Tokenizer::from_vocabulary(both.vocabulary);
  both.vocabulary.tokens.push_back("\n\n\n\n\n");
  both.vocabulary.types.push_back(1);
  const Tokenizer after = Tokenizer::from_vocabulary(both.vocabulary);
  const auto count = [&](const std::string& text) {
    const auto ids = testing::encode(after, text);
    return std::count(ids.begin(), ids.end(), five);
  };
  EXPECT_EQ(count("a\n\n\n\n\nb"), 1);
  for (const char* text : {"a\n\n\n\nb", "a\n\n\n\n\n\nb", "\n\n\n", "a"}) {
    EXPECT_EQ(count(text), 0) << text;
    EXPECT_EQ(testing::encode(after, text), testing::encode(before, text)) << text;
  }
  EXPECT_EQ(after.decode(testing::encode(after, "a\n\n\n\n\n  b\n")), "a\n\n\n\n\n  b\n");
}

}  // namespace
}  // namespace headrace
