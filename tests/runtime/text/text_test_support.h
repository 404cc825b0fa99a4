// What the text tests share: files, golden rows, small tokenizers written as JSON.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace headrace::testing {

using Json = nlohmann::json;

inline std::string data_path(const std::string& name) { return HEADRACE_TEST_DATA "/tokenizers/" + name; }

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

inline Json read_json(const std::string& name) { return Json::parse(read_file(data_path(name))); }

inline Tokenizer load(const Json& json, const std::string& source = "tokenizer.json", SpecialNames names = {}) {
  return Tokenizer::from_json(json.dump(), source, std::move(names));
}

// The tokenizer that a golden row of chat names, with the row's added tokens and the name that make_chat_golden.py gave
// to the first.
inline Tokenizer tokenizer_of(const Json& row) {
  Json json = read_json(row.at("tokenizer").get<std::string>() + ".tokenizer.json");
  json["added_tokens"] = row.at("added");
  const bool has_bos = row.at("tokenizer") != "qwen2";
  const char* const bos = row.at("tokenizer") == "llama2" ? "<s>" : "<|begin_of_text|>";
  return load(json, "tokenizer.json", has_bos ? SpecialNames{{"bos_token", bos}} : SpecialNames{});
}

inline std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text,
                                   SpecialTokens special = SpecialTokens::kParse) {
  return tokenizer.encode(text, AddBos::kNo, special);
}

// All 287 texts: ids with and without the post-processor, decoded text whole and streamed, no special id from plain
// text.
inline void expect_golden(const Tokenizer& tokenizer, const std::string& family) {
  const Json rows = read_json(family + ".ids.json");
  ASSERT_EQ(rows.size(), 287u);
  for (const Json& row : rows) {
    const auto text = row.at("text").get<std::string>();
    const auto ids = row.at("ids_no_special").get<std::vector<int32_t>>();
    const auto decoded = row.at("decoded").get<std::string>();
    EXPECT_EQ(tokenizer.encode(text, AddBos::kYes, SpecialTokens::kParse), row.at("ids").get<std::vector<int32_t>>())
        << text;
    EXPECT_EQ(encode(tokenizer, text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids), decoded);
    StreamingDecoder stream(tokenizer, SpecialTokens::kAsText);
    std::string streamed;
    for (int32_t id : ids) streamed += stream.push(id);
    EXPECT_EQ(streamed + stream.finish(), decoded);
    for (int32_t id : encode(tokenizer, text, SpecialTokens::kAsText)) EXPECT_FALSE(tokenizer.is_special(id)) << text;
  }
}

}  // namespace headrace::testing
