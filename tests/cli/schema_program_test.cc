// Answers by a JSON schema, from the command line and from a batch.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/cli/program_fixture.h"

namespace headrace {
namespace {

using nlohmann::json;

class SchemaProgram : public ProgramTest {
 protected:
  static constexpr const char* kSchema =
      R"({"type":"object","properties":{"b":{"enum":["x","yy"]},"a":{"type":"array","items":{"type":"boolean"},)"
      R"("minItems":2,"maxItems":3}},"required":["b","a"],"additionalProperties":false})";
  static Finished generate(std::vector<std::string> more) {
    std::vector<std::string> args = {"generate", "-m", model_, "-t", "1", "-p", "tell me the same, the same"};
    args.insert(args.end(), more.begin(), more.end());
    return run_program(args);
  }
  static void expect_answer(const std::string& text) {
    const json answer = json::parse(text, nullptr, false);
    ASSERT_TRUE(answer.is_object()) << text;
    EXPECT_EQ(answer.size(), 2u) << text;
    EXPECT_TRUE(answer["b"] == "x" || answer["b"] == "yy") << text;
    EXPECT_TRUE(answer["a"].is_array() && answer["a"].size() >= 2 && answer["a"].size() <= 3) << text;
    EXPECT_LT(text.find("\"b\""), text.find("\"a\"")) << text;
  }
};

TEST_F(SchemaProgram, AnswersByTheSchema) {
  const std::string schema = folder_->write("schema.json", kSchema);
  const Finished plain = generate({"--json-schema", schema, "-n", "200"});
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  expect_answer(plain.out);
  const Finished drafted = generate({"--json-schema", schema, "-n", "200", "--spec-type", "ngram-simple", "--json"});
  ASSERT_EQ(drafted.exit_code, 0) << drafted.err;
  const json line = json_lines(drafted.out)[0];
  EXPECT_EQ(line["finish_reason"], "stop");
  EXPECT_FALSE(line.contains("incomplete_json"));
  expect_answer(line["text"]);
}

TEST_F(SchemaProgram, SaysThatTheAnswerIsCut) {
  const std::string schema = folder_->write("schema.json", kSchema);
  const Finished cut = generate({"--json-schema", schema, "-n", "7"});
  ASSERT_EQ(cut.exit_code, 0) << cut.err;
  EXPECT_NE(cut.err.find("incomplete JSON"), std::string::npos) << cut.err;
  const json line = json_lines(generate({"--json-schema", schema, "-n", "7", "--json"}).out)[0];
  EXPECT_EQ(line["incomplete_json"], true);
  EXPECT_EQ(line["finish_reason"], "length");
}

TEST_F(SchemaProgram, RefusesAKeywordByName) {
  const std::string schema = folder_->write("other.json", R"({"properties":{"n":{"not":{}}}})");
  const Finished refused = generate({"--json-schema", schema});
  EXPECT_EQ(refused.exit_code, 3);
  for (const char* const part : {"other.json", "properties.n", "\"not\""}) {
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  }
  EXPECT_EQ(generate({"--json-schema", *folder_ / "none.json"}).exit_code, 3);
}

TEST_F(SchemaProgram, AnswersABatch) {
  const auto request = [](const char* id, const json& more) {
    json body = {{"model", "tiny"}, {"prompt", "tell me the same, the same"}, {"max_tokens", 200}};
    body.update(more);
    return json{{"custom_id", id}, {"method", "POST"}, {"url", "/v1/completions"}, {"body", body}}.dump() + "\n";
  };
  std::string lines =
      request("free", {{"max_tokens", 20}}) +
      request("penalty", {{"max_tokens", 20}, {"frequency_penalty", 2}, {"presence_penalty", 2}}) +
      request("format",
              {{"response_format",
                {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", {{"const", {1, "two"}}}}}}}}});
  lines += R"({"custom_id":"guided","method":"POST","url":"/v1/completions","body":{"model":"tiny","prompt":"go on",)"
           R"("max_tokens":200,"guided_json":)" +
           std::string(kSchema) + "}}\n";
  const std::string out = *folder_ / "out.jsonl";
  const Finished done =
      run_program({"batch", "-m", model_, "-t", "1", "-i", folder_->write("in.jsonl", lines), "-o", out});
  ASSERT_EQ(done.exit_code, 0) << done.err;
  std::map<std::string, std::string> texts;
  for (const json& line : json_lines(folder_->read("out.jsonl"))) {
    ASSERT_EQ(line["response"]["status_code"], 200) << line;
    texts[line["custom_id"]] = line["response"]["body"]["choices"][0]["text"];
  }
  EXPECT_EQ(json::parse(texts["format"]), (json{1, "two"}));
  expect_answer(texts["guided"]);
  EXPECT_NE(texts["penalty"], texts["free"]);
}

}  // namespace
}  // namespace headrace
