// Broken and hostile tokenizer files: each ends in an Error(kBadInput) that names the source and what is wrong in it.
#include <gtest/gtest.h>

#include <functional>

#include "cache/base.h"
#include "tests/runtime/text/text_test_support.h"

namespace headrace {
namespace {

using testing::Json;

// A whole tokenizer in one line: the bytes a to c, two merges, one added token.
Json small() {
  return Json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<|end|>", "special": true}],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": null,
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, "ab": 3, "abc": 4}, "merges": [["a", "b"], ["ab", "c"]]}
  })");
}

void expect_error(const std::string& text, const std::string& mention) {
  SCOPED_TRACE(text.substr(0, 400));
  try {
    Tokenizer::from_json(text, "some/tokenizer.json");
    ADD_FAILURE() << "no error that mentions " << mention;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_EQ(std::string(error.what()).rfind("some/tokenizer.json: ", 0), 0u) << error.what();
    EXPECT_NE(std::string(error.what()).find(mention), std::string::npos) << error.what();
    EXPECT_LT(std::string(error.what()).size(), 1000u);
  }
}

struct Change {
  const char* pointer;  // where, as a JSON pointer
  Json value;
  const char* mention;
};

Json byte_level_after_split(const std::string& regex) {
  return {{"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}},
            {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
}

std::vector<Change> changes() {
  const Json pair = Json::array({"a", "b"});
  return {
      {"/model", nullptr, "\"model\""},
      {"/model", 7, "model is 7"},
      {"/model/type", "WordPiece", "WordPiece"},
      {"/model/type", "Unigram", "Unigram"},
      {"/model/type", 3, "model.type is 3"},
      {"/model/vocab", nullptr, "vocab"},
      {"/model/vocab", Json::array(), "model.vocab"},
      {"/model/vocab", Json::object(), "no tokens"},
      {"/model/vocab/a", -1, "-1"},
      {"/model/vocab/a", 1, "id 1"},
      {"/model/vocab/a", 2147483647, "2147483647"},
      {"/model/vocab/a", 18446744073709551615u, "18446744073709551615"},
      {"/model/vocab/a", 1.5, "1.5"},
      {"/model/vocab/a", "0", "model.vocab['a']"},
      {"/model/vocab/", 6, "empty token"},
      {"/model/merges", nullptr, "merges"},
      {"/model/merges", "a b", "model.merges"},
      {"/model/merges/0", "ab", "'ab'"},
      {"/model/merges/0", "a b c", "'a b c'"},
      {"/model/merges/0", "", "two tokens"},
      {"/model/merges/0", Json::array({"a"}), "1 parts"},
      {"/model/merges/0", Json::array({"a", 1}), "is 1"},
      {"/model/merges/0", 5, "is 5"},
      {"/model/merges/0", Json::array({"a", "z"}), "'z'"},
      {"/model/merges/0", Json::array({"a", "c"}), "'ac'"},
      {"/model/merges/0", Json::array({"", "a"}), "empty part"},
      {"/model/merges/0", Json::array({"a", ""}), "empty part"},
      {"/model/merges/1", pair, "repeats merge 0"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/continuing_subword_prefix", "##", "##"},
      {"/model/end_of_word_suffix", "</w>", "</w>"},
      {"/model/unk_token", "<unk>", "<unk>"},
      {"/model/ignore_merges", "yes", "ignore_merges"},
      {"/model/byte_fallback", 1, "byte_fallback"},
      {"/added_tokens", 5, "added_tokens"},
      {"/added_tokens/0", 5, "added_tokens[0]"},
      {"/added_tokens/0/id", nullptr, "\"id\""},
      {"/added_tokens/0/id", -5, "-5"},
      {"/added_tokens/0/id", 1000000000, "1000000000"},
      {"/added_tokens/0/id", 4, "id 4"},
      {"/added_tokens/0/content", "", "empty"},
      {"/added_tokens/0/content", "abc", "'abc'"},
      {"/added_tokens/0/content", 3, "content"},
      {"/added_tokens/0/special", "true", "special"},
      {"/normalizer", {{"type", "NFKC"}}, "NFKC"},
      {"/normalizer", {{"type", "Lowercase"}}, "Lowercase"},
      {"/normalizer", {{"kind", "NFC"}}, "\"type\""},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", "x"}}, "pattern"},
      {"/normalizer", {{"type", "Replace"}, {"pattern", {{"String", ""}}}, {"content", "x"}}, "empty"},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", 1}}, "normalizers"},
      {"/pre_tokenizer/type", "Whitespace", "Whitespace"},
      {"/pre_tokenizer/type", "BertPreTokenizer", "BertPreTokenizer"},
      {"/pre_tokenizer", byte_level_after_split("(a"), "(a"},
      {"/pre_tokenizer", byte_level_after_split("\\p{Nonsense}"), "Nonsense"},
      {"/pre_tokenizer", byte_level_after_split(""), "empty regular expression"},
      {"/pre_tokenizer", byte_level_after_split(std::string(100000, 'a')), "100000 bytes"},
      {"/pre_tokenizer", byte_level_after_split(std::string(9000, '(') + std::string(7000, ')')), "(((("},
      {"/pre_tokenizer", byte_level_after_split("(?:a{1,65535}){1,65535}"), "a{1,65535}"},
      {"/pre_tokenizer/type", "Sequence", "pretokenizers"},
      {"/decoder", nullptr, "decoder"},
      {"/decoder/type", "WordPiece", "WordPiece"},
      {"/decoder/type", "Strip", "Strip"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/post_processor", {{"type", "TemplateProcessing"}, {"single", Json::array()}}, "no place"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{"<s>", {{"ids", {99}}}}}}},
       "99"},
      {"/post_processor",
       {{"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", Json::object()}},
       "<s>"},
  };
}

TEST(HostileTokenizer, TheUnchangedOneLoads) {
  const Tokenizer tokenizer = testing::load(small());
  EXPECT_EQ(testing::encode(tokenizer, "abcab<|end|>c"), (std::vector<int32_t>{4, 3, 5, 2}));
}

TEST(HostileTokenizer, ChangedInOnePlace) {
  for (const Change& change : changes()) {
    Json json = small();
    json[Json::json_pointer(change.pointer)] = change.value;
    expect_error(json.dump(), change.mention);
  }
}

TEST(HostileTokenizer, NotJson) {
  expect_error("", "empty");
  expect_error(" ", "byte");
  expect_error("null", "the file is null");
  expect_error("[]", "the file is []");
  expect_error("{\"model\": nul}", "byte 10 of 14");
  expect_error(std::string("\0\0\0\0", 4), "byte 0 of 4");
  expect_error("{\"a\": \"\xff\"}", "byte");
  expect_error("{\"a\": \"\xed\xa0\x80\"}", "byte");
  expect_error("{\"a\": \"\\ud800\"}", "lone surrogate");
  expect_error("{\"a\": 1e999}", "not valid JSON");
  const std::string whole = small().dump();
  for (size_t size = 1; size < whole.size(); size += 7) expect_error(whole.substr(0, size), "not valid JSON");
}

TEST(HostileTokenizer, DeepNesting) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    for (int i = 0; i < 200000; ++i) text += open;
    expect_error(text, "deeper than 64");
  }
}

// Every single bit of a small file flipped: an Error or a tokenizer that still works, never anything else.
TEST(HostileTokenizer, BitFlips) {
  const std::string whole = small().dump();
  int loaded = 0;
  for (size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string text = whole;
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ 1 << bit % 8);
    try {
      const Tokenizer tokenizer = Tokenizer::from_json(text, "some/tokenizer.json");
      tokenizer.decode(testing::encode(tokenizer, "abcab <|end|> c"));
      ++loaded;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput) << error.what();
    }
  }
  EXPECT_GT(loaded, 0);
}

// A pattern that backtracks without end stops with an error, in bounded time.
TEST(HostileTokenizer, RunawayRegex) {
  Json json = small();
  json["pre_tokenizer"] = byte_level_after_split("(a+)+$");
  const Tokenizer tokenizer = testing::load(json, "some/tokenizer.json");
  try {
    testing::encode(tokenizer, std::string(5000, 'a') + "b");
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadInput);
    EXPECT_NE(std::string(error.what()).find("(a+)+$"), std::string::npos) << error.what();
  }
}

TEST(HostileTokenizer, MatchesOfNothingAndOddPatterns) {
  for (const char* regex : {"x*", "(?=a)", "", "\\b", "$", "^"}) {
    if (*regex == '\0') continue;
    Json json = small();
    json["pre_tokenizer"] = byte_level_after_split(regex);
    const Tokenizer tokenizer = testing::load(json);
    EXPECT_EQ(tokenizer.decode(testing::encode(tokenizer, "abcabc")), "abcabc") << regex;
  }
}

Vocabulary small_vocabulary() {
  Vocabulary out;
  out.source = "some/model.gguf";
  out.model = "gpt2";
  out.pre = "gpt-2";
  out.tokens = {"a", "b", "c", "ab", "abc", "<|end|>"};
  out.types = {1, 1, 1, 1, 1, 3};
  out.merges = {"a b", "ab c"};
  return out;
}

TEST(HostileVocabulary, ChangedInOnePlace) {
  struct Case {
    std::function<void(Vocabulary*)> change;
    const char* mention;
  };
  const std::vector<Case> cases = {
      {[](Vocabulary* v) { v->model = "bert"; }, "bert"},
      {[](Vocabulary* v) { v->model.clear(); }, "tokenizer.ggml.model ''"},
      {[](Vocabulary* v) { v->pre = "tekken9"; }, "tekken9"},
      {[](Vocabulary* v) { v->tokens.clear(); }, "tokens is empty"},
      {[](Vocabulary* v) { v->tokens[1] = v->tokens[0]; }, "'a'"},
      {[](Vocabulary* v) { v->tokens[1] = '\xff'; }, "token 1 is not UTF-8"},
      {[](Vocabulary* v) { v->types.pop_back(); }, "token_type has 5"},
      {[](Vocabulary* v) { v->types.clear(); }, "token_type has 0"},
      {[](Vocabulary* v) { v->merges.clear(); }, "tokenizer.ggml.merges is missing"},
      {[](Vocabulary* v) { v->pre.clear(); }, "tokenizer.ggml.pre is missing"},
      {[](Vocabulary* v) { v->types[2] = 99; }, "type 99"},
      {[](Vocabulary* v) { v->types[2] = -1; }, "type -1"},
      {[](Vocabulary* v) { v->merges[0] = v->tokens[3]; }, "'ab'"},
      {[](Vocabulary* v) { v->merges[0] = "a b c"; }, "'a b c'"},
      {[](Vocabulary* v) { v->merges[0] = "a z"; }, "'z'"},
      {[](Vocabulary* v) { v->merges[0] = "b a"; }, "'ba'"},
      {[](Vocabulary* v) { v->merges[0] = " a"; }, "empty part"},
      {[](Vocabulary* v) { v->merges[1] = v->merges[0]; }, "repeats merge 0"},
      {[](Vocabulary* v) { v->bos = 6; }, "bos_token_id is 6"},
      {[](Vocabulary* v) { v->eos = -2; }, "eos_token_id is -2"},
      {[](Vocabulary* v) { v->pad = 1 << 30; }, "padding_token_id is 1073741824"},
      {[](Vocabulary* v) { v->eot = 100; }, "eot_token_id is 100"},
      {[](Vocabulary* v) { v->model = "llama"; }, "scores has 0"},
      {[](Vocabulary* v) { v->model = "llama", v->scores = {0, 1, 2, 3, NAN, 5}; }, "score of token 4"},
      {[](Vocabulary* v) { v->model = "llama", v->scores.resize(6), v->unk = 77; }, "unknown_token_id is 77"},
  };
  EXPECT_EQ(testing::encode(Tokenizer::from_vocabulary(small_vocabulary()), "abcab<|end|>c"),
            (std::vector<int32_t>{4, 3, 5, 2}));
  for (const Case& one : cases) {
    Vocabulary vocabulary = small_vocabulary();
    one.change(&vocabulary);
    try {
      Tokenizer::from_vocabulary(vocabulary);
      ADD_FAILURE() << "no error that mentions " << one.mention;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadInput);
      EXPECT_NE(std::string(error.what()).find("some/model.gguf"), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(one.mention), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace headrace
