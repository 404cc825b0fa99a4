// Lines of a batch as requests: what is taken, and what is refused by the name of its field.
#include "runtime/requests/request.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/grammar/automaton.h"
#include "tests/support/refusal.h"
#include "tests/support/scoped_variable.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;
using testing_support::expect_error;

json chat() {
  return {{"custom_id", "one"},
          {"method", "POST"},
          {"url", "/v1/chat/completions"},
          {"body", {{"model", "m"}, {"messages", {{{"role", "user"}, {"content", "hello"}}}}}}};
}

json completion() {
  return {{"custom_id", "two"},
          {"method", "POST"},
          {"url", "/v1/completions"},
          {"body", {{"model", "m"}, {"prompt", "hello"}}}};
}

BatchLine parse(const json& line) { return parse_batch_line(line.dump(), "in: line 7"); }

TEST(Requests, ValuesOfAChat) {
  json line = chat();
  line["body"]["messages"] = {
      {{"role", "system"}, {"content", "be brief"}},
      {{"role", "user"}, {"content", {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}}}}};
  line["body"].update({{"max_completion_tokens", 7},
                       {"temperature", 0.5},
                       {"top_p", 0.9},
                       {"seed", -1},
                       {"top_k", 3},
                       {"min_p", 0.1},
                       {"stop", {"x", "y"}},
                       {"n", 1},
                       {"stream", false},
                       {"user", "me"},
                       {"logprobs", true},
                       {"top_logprobs", 20},
                       {"response_format", {{"type", "text"}}}});
  const BatchLine parsed = parse(line);
  EXPECT_EQ(parsed.custom_id, "one");
  EXPECT_EQ(json(parsed.request.conversation.messages),
            json({{{"role", "system"}, {"content", "be brief"}}, {{"role", "user"}, {"content", "ab"}}}));
  GenerateOptions options;
  parsed.request.apply(&options);
  EXPECT_EQ(options.max_tokens, 7);
  EXPECT_FLOAT_EQ(options.sampling.temperature, 0.5f);
  EXPECT_FLOAT_EQ(options.sampling.top_p, 0.9f);
  EXPECT_FLOAT_EQ(options.sampling.min_p, 0.1f);
  EXPECT_EQ(options.sampling.top_k, 3);
  EXPECT_EQ(options.sampling.seed, UINT64_MAX);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(options.log_probs, LogProbs::kComputed);
  EXPECT_EQ(options.top_tokens, 20);
}

TEST(Requests, ABudgetOfThinkingHasThreeNames) {
  const auto budget_of = [](const json& more) {
    json line = chat();
    line["body"].update(more);
    GenerateOptions options;
    options.reasoning_budget = 99;
    const Request request = parse(line).request;
    request.apply(&options);
    EXPECT_EQ(request.conversation.no_thinking, options.reasoning_budget == 0);
    return options.reasoning_budget;
  };
  EXPECT_EQ(budget_of(json::object()), 99);
  for (const char* name : {"reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"}) {
    EXPECT_EQ(budget_of({{name, 7}}), 7) << name;
    EXPECT_EQ(budget_of({{name, 0}}), 0) << name;
    EXPECT_EQ(budget_of({{name, -1}}), 99) << name;
    EXPECT_EQ(budget_of({{name, nullptr}}), 99) << name;
    json line = chat();
    line["body"][name] = -2;
    expect_error(ExitCode::kBadInput, "in: line 7", {name, "-2"}, [&line] { parse(line); });
  }
  for (const auto& [format, apart] :
       std::vector<std::pair<json, bool>>{{"auto", true}, {"deepseek", true}, {nullptr, true}, {"none", false}}) {
    json line = chat();
    line["body"]["reasoning_format"] = format;
    EXPECT_EQ(parse(line).request.reasoning_apart, apart) << format;
  }
  json line = chat();
  line["body"]["reasoning_format"] = "hide";
  expect_error(ExitCode::kBadInput, "in: line 7", {"reasoning_format \"hide\""}, [&line] { parse(line); });
}

TEST(Requests, ImagesAreRefusedByName) {
  for (const char* type : {"image_url", "input_image", "image"}) {
    json line = chat();
    line["body"]["messages"] = {
        {{"role", "user"},
         {"content", {{{"type", "text"}, {"text", "What is this?"}}, {{"type", type}, {type, {{"url", "data:"}}}}}}}};
    expect_error(ExitCode::kBadInput, "in: line 7", {"messages", "an image", type, "only text"},
                 [&line] { parse(line); });
  }
}

json file_message(const std::vector<json>& parts) { return {{{"role", "user"}, {"content", parts}}}; }

json file_part(const std::string& name, const std::string& data) {
  return {{"type", "file"}, {"file", {{"filename", name}, {"file_data", data}}}};
}

std::string user_text(const json& line) {
  return parse(line).request.conversation.messages.back()["content"].get<std::string>();
}

// As the openai package sends it: a data URL in base64.
TEST(Requests, AFileIsItsText) {
  const json ask = {{"type", "text"}, {"text", "What is it?"}};
  json line = chat();
  line["body"]["messages"] = file_message({file_part("a.txt", "data:text/plain;base64,V2F0ZXIgdHVybnMu"), ask});
  EXPECT_EQ(user_text(line), "Water turns.\n\nWhat is it?");
  line["body"]["messages"] = file_message({ask, file_part("a.txt", "V2F0ZXIgdHVybnMu")});
  EXPECT_EQ(user_text(line), "What is it?\n\nWater turns.");
  line["body"]["messages"] = file_message({file_part("a.txt", "YQ=="), file_part("b.txt", "YmI"), ask});
  EXPECT_EQ(user_text(line), "File: a.txt\n\na\n\nFile: b.txt\n\nbb\n\nWhat is it?");
}

TEST(Requests, AFileThatCannotBeReadIsNamed) {
  struct Case {
    json part;
    std::string where, says;
  };
  const auto with = [](const json& file) { return json{{"type", "file"}, {"file", file}}; };
  const std::vector<Case> cases = {
      {file_part("a.pdf", "data:application/pdf;base64,%%"), "a.pdf", "has file_data that is not base64"},
      {file_part("a.txt", "data:text/plain,abc"), "a.txt", "has a data URL that is not in base64"},
      {file_part("a.txt", "YWJj/w=="), "a.txt", "is not UTF-8 text: byte 0xff at offset 3"},
      {file_part("a.txt", "IA=="), "a.txt", "is empty"},
      {file_part("a.xls", "0M8R4KGxGuEA"), "a.xls", "is an office file that cannot be converted"},
      {with({{"file_id", "file-1"}}), "in: line 7", "by file_id: this program keeps no files"},
      {with({{"file_url", "http://a/b"}}), "in: line 7", "by file_url: this program fetches nothing"},
      {with({{"filename", "a"}}), "in: line 7", "without file_data"},
      {with("a"), "in: line 7", "has a file that is not an object"},
      {{{"type", "file"}}, "in: line 7", "has a file that is not an object"}};
  for (const Case& bad : cases) {
    json line = chat();
    line["body"]["messages"] = file_message({bad.part});
    expect_error(ExitCode::kBadInput, bad.where, {bad.says}, [&line] { parse(line); });
  }
}

// The name is the client's in the prompt and for the format, and printable in errors.
TEST(Requests, AFilesNameMayBeLongAndInAnyScript) {
  const std::string name = std::string(100, 'a') + "\xc3\xbc.pdf", cut = std::string(96, 'a') + "... (106 bytes).pdf";
  json line = chat();
  line["body"]["messages"] = file_message({file_part(name, "YQ=="), file_part("b.txt", "YmI=")});
  EXPECT_EQ(user_text(line), "File: " + name + "\n\na\n\nFile: b.txt\n\nbb");
  line["body"]["messages"] = file_message({file_part(name, "IA==")});
  expect_error(ExitCode::kBadInput, cut, {"is empty"}, [&line] { parse(line); });
  const ScopedVariable nothing("PATH", "/nowhere");
  line["body"]["messages"] = file_message({file_part("\xc3\xbc.pdf", "JVBERi0=")});  // %PDF-
  expect_error(ExitCode::kBadInput, "\\xc3\\xbc.pdf", {"pdftotext", "is not installed"}, [&line] { parse(line); });
}

TEST(Requests, FilesShareOneLimitOfText) {
  const FileRules rules = {.text_bytes = 6};
  const auto text_of = [&rules](const std::vector<json>& parts) {
    json line = chat();
    line["body"]["messages"] = file_message(parts);
    return parse_batch_line(line.dump(), "in", nullptr, rules).request.text();
  };
  EXPECT_EQ(text_of({file_part("a", "YWJj"), file_part("b", "YWJj")}), "File: a\n\nabc\n\nFile: b\n\nabc");
  expect_error(ExitCode::kBadInput, "b", {"has 4 bytes", "may have 6 together", "leave 3"}, [&] {
    text_of({file_part("a", "YWJj"), file_part("b", "YWJjZA==")});
  });
  expect_error(ExitCode::kBadInput, "a", {"has 7 bytes or more: the limit is 6"},
               [&] { text_of({file_part("a", "YWJjZGVmZw==")}); });
  std::vector<json> many(16, file_part("a", "YQ=="));
  json two = chat();
  two["body"]["messages"] = {{{"role", "user"}, {"content", many}}, {{"role", "user"}, {"content", "Why?"}}};
  EXPECT_NO_THROW(parse(two));
  two["body"]["messages"][1]["content"] = json::array({many[0]});
  expect_error(ExitCode::kBadInput, "in: line 7", {"messages", "more than 16 files"}, [&two] { parse(two); });
}

void write_program(TemporaryFolder* folder, const std::string& name, const std::string& script) {
  folder->write(name, "#!/bin/sh\n" + script);
  ASSERT_EQ(::chmod((*folder / name).c_str(), 0700), 0);
}

std::string with_file(const json& part) { return json{{"model", "m"}, {"messages", file_message({part})}}.dump(); }

// A server has few threads, so that none waits for another's file.
TEST(Requests, OneFileIsConvertedAtATime) {
  TemporaryFolder folder;
  write_program(
      &folder, "pdftotext",
      "touch " + folder / "began" + "\nwhile [ ! -e " + folder / "go" + " ]; do /bin/sleep 0.01; done\necho a\n");
  const ScopedVariable path("PATH", folder.path() + ":/usr/bin:/bin");
  const std::string pdf = with_file(file_part("a.pdf", "JVBERi0="));
  const FileRules now = {.waits = false};
  std::thread other([&pdf] {
    EXPECT_EQ(parse_request(pdf, RequestKind::kChat, "request").conversation.messages[0]["content"], "a");
  });
  for (int i = 0; i < 2000 && !std::filesystem::exists(folder / "began"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_THROW(parse_request(pdf, RequestKind::kChat, "request", now), ConverterBusy);
  const std::string plain = with_file(file_part("a.txt", "YWJj"));
  EXPECT_EQ(parse_request(plain, RequestKind::kChat, "request", now).conversation.messages[0]["content"], "abc");
  folder.write("go", "");
  other.join();
  EXPECT_NO_THROW(parse_request(pdf, RequestKind::kChat, "request", now));
}

TEST(Requests, ConversionsHaveOneDeadlineAndAnInterrupt) {
  TemporaryFolder folder;
  write_program(&folder, "pdftotext", "/bin/sleep 1\necho a\n");
  const ScopedVariable path("PATH", folder.path() + ":/usr/bin:/bin");
  const json pdf = file_part("a.pdf", "JVBERi0=");
  const std::string two = json{{"model", "m"}, {"messages", file_message({pdf, pdf})}}.dump();
  expect_error(ExitCode::kBadInput, "a.pdf", {"takes too long"},
               [&two] { parse_request(two, RequestKind::kChat, "request", {.convert_seconds = 1.5}); });
  const std::atomic<bool> interrupt = true;
  expect_error(ExitCode::kInterrupted, "a.pdf", {"interrupted"},
               [&] { parse_request(two, RequestKind::kChat, "request", {.interrupt = &interrupt}); });
}

// A chat has a switch and a number, a completion has the number alone.
TEST(Requests, LogProbabilitiesAreAskedForInTwoWays) {
  const auto top_of = [](json line, const json& more) {
    line["body"].update(more);
    return parse(line).request.top_log_probs;
  };
  EXPECT_EQ(top_of(chat(), {{"logprobs", nullptr}}), std::nullopt);
  EXPECT_EQ(top_of(chat(), {{"logprobs", false}, {"top_logprobs", 0}}), std::nullopt);
  EXPECT_EQ(top_of(chat(), {{"logprobs", true}}), 0);
  EXPECT_EQ(top_of(chat(), {{"logprobs", true}, {"top_logprobs", 3}}), 3);
  EXPECT_EQ(top_of(completion(), {{"logprobs", nullptr}}), std::nullopt);
  EXPECT_EQ(top_of(completion(), {{"logprobs", 0}}), 0);
  EXPECT_EQ(top_of(completion(), {{"logprobs", 5}}), 5);
  for (const json& wrong : {json{{"logprobs", 6}}, json{{"logprobs", true}}, json{{"top_logprobs", 1}}}) {
    expect_error(ExitCode::kBadInput, "in: line 7", {"logprobs"}, [&] { top_of(completion(), wrong); });
  }
  GenerateOptions reserved;
  reserved.log_probs = LogProbs::kReserved;
  parse(completion()).request.apply(&reserved);
  EXPECT_EQ(reserved.log_probs, LogProbs::kReserved);
}

TEST(Requests, AConversation) {
  json line = chat();
  line["body"]["messages"] = {{{"role", "system"}, {"content", "s"}},
                              {{"role", "user"}, {"content", "one"}},
                              {{"role", "assistant"}, {"content", "two"}},
                              {{"role", "user"}, {"content", "three"}}};
  const Request request = parse(line).request;
  EXPECT_EQ(json(request.conversation.messages), line["body"]["messages"]);
  EXPECT_EQ(request.text(), "s\none\ntwo\nthree");
  EXPECT_EQ(parse(chat()).request.text(), "hello");
}

// As clients send back what they were answered: with null members, and a call's arguments as text.
TEST(Requests, AHistoryWithTools) {
  json line = chat();
  line["body"]["messages"] = json::parse(R"([
      {"role": "system", "content": "a"}, {"role": "developer", "content": [{"type": "text", "text": "b"}]},
      {"role": "user", "content": "q", "name": "me"},
      {"role": "assistant", "content": null, "refusal": null, "audio": null, "function_call": null, "annotations": [],
       "reasoning_content": "hm", "tool_calls": [
           {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
           {"id": "2", "type": "function", "function": {"name": "g", "arguments": {"y": [2]}}},
           {"id": "3", "type": "function", "function": {"name": "h"}}]},
      {"role": "tool", "tool_call_id": "2", "content": "two"}, {"role": "tool", "tool_call_id": "1", "content": "one"},
      {"role": "assistant", "content": "so", "tool_calls": []}, {"role": "system", "content": "c"},
      {"role": "user", "content": "r"}])");
  const Request request = parse(line).request;
  const json& messages = request.conversation.messages;
  EXPECT_EQ(messages, json::parse(R"([
      {"role": "system", "content": "a"}, {"role": "developer", "content": "b"},
      {"role": "user", "content": "q", "name": "me"},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
           {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}},
           {"id": "2", "type": "function", "function": {"name": "g", "arguments": "{\"y\":[2]}"}},
           {"id": "3", "type": "function", "function": {"name": "h", "arguments": "{}"}}]},
      {"role": "tool", "tool_call_id": "2", "content": "two", "name": "g"},
      {"role": "tool", "tool_call_id": "1", "content": "one", "name": "f"},
      {"role": "assistant", "content": "so"}, {"role": "system", "content": "c"}, {"role": "user", "content": "r"}])"));
  line["body"]["messages"].erase(8);
  line["body"]["messages"].erase(7);
  line["body"]["messages"].erase(6);
  EXPECT_NO_THROW(parse(line)) << "the model reads what a tool answered";
}

TEST(Requests, WhatIsLeftOutFollowsTheOptions) {
  GenerateOptions options;
  options.max_tokens = 99;
  options.sampling = {.temperature = 0.7f, .top_k = 5, .top_p = 0.8f, .min_p = 0.2f, .seed = 4};
  parse(completion()).request.apply(&options);
  EXPECT_EQ(options.max_tokens, 99);
  EXPECT_FLOAT_EQ(options.sampling.temperature, 0.7f);
  EXPECT_EQ(options.sampling.seed, 4u);
  EXPECT_EQ(parse(completion()).request.text(), "hello");
}

TEST(Requests, AreRefusedByTheNameOfTheField) {
  struct Case {
    std::vector<std::string> path;
    json value;
    const char* says;
  };
  const std::vector<Case> cases = {
      {{"custom_id"}, 5, "custom_id 5 must be a string"},
      {{"custom_id"}, "", "custom_id \"\" must be"},
      {{"method"}, "GET", "method \"GET\" must be \"POST\""},
      {{"url"}, "/v1/embeddings", "url \"/v1/embeddings\""},
      {{"body"}, json::array(), "body [] must be an object"},
      {{"extra"}, 1, "extra 1 is not supported"},
      {{"body", "model"}, nullptr, "body.model is missing"},
      {{"body", "prompt"}, "x", "body.prompt \"x\" belongs to completions"},
      {{"body", "messages"}, json::array(), "body.messages [] must be"},
      {{"body", "messages"}, {{{"role", "user"}}}, "without content"},
      {{"body", "messages"}, {{{"role", "system"}, {"content", "s"}}}, "must end with a user or tool message"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", "a"}}, {{"role", "assistant"}, {"content", "b"}}},
       "must end with a user or tool message"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", "a"}}, {{"role", "function"}, {"content", "b"}}},
       "body.messages[1] has the role \"function\""},
      {{"body", "messages"},
       {{{"role", "tool"}, {"content", "a"}}},
       "has a tool message whose tool_call_id matches no"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", "a"}}, {{"role", "system"}, {"content", "b"}}},
       "must end with a user or tool message"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", {{{"type", "image_url"}, {"image_url", "x"}}}}}},
       "has an image (\"image_url\")"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", {{{"type", "input_audio"}, {"input_audio", "x"}}}}}},
       "only text and files are supported"},
      {{"body", "max_tokens"}, 0, "body.max_tokens 0 must be a whole number from 1"},
      {{"body", "temperature"}, 2.5, "body.temperature 2.5 must be from 0 to 2"},
      {{"body", "top_p"}, 0, "body.top_p 0 must be"},
      {{"body", "stop"}, {"a", "b", "c", "d", "e"}, "has 5 texts: at most 4"},
      {{"body", "stop"}, 5, "body.stop 5 must be a string"},
      {{"body", "n"}, 2, "body.n 2 is not supported: only 1 is"},
      {{"body", "stream"}, true, "body.stream true is not supported"},
      {{"body", "logprobs"}, 5, "body.logprobs 5 must be true or false"},
      {{"body", "top_logprobs"}, 5, "body.top_logprobs 5 needs \"logprobs\": true"},
      {{"body", "top_logprobs"}, 21, "body.top_logprobs 21 must be a whole number from 0 to 20"},
      {{"body", "tools"}, {{{"type", "function"}}}, "body.tools"},
      {{"body", "frequency_penalty"}, 2.5, "body.frequency_penalty 2.5 must be from -2 to 2"},
      {{"body", "response_format"}, {{"type", "xml"}}, "must have the type"},
      {{"body", "response_format"}, {{"type", "json_schema"}}, "has no json_schema"},
      {{"body", "response_format"},
       {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", {{"not", json::object()}}}}}},
       "body.response_format.json_schema.schema: the schema has the keyword \"not\""},
      {{"body", "guided_json"}, 5, "body.guided_json 5 has no schema"},
      {{"body", "structured_outputs"}, {{"regex", "a"}}, "has \"regex\", which is not supported"},
      {{"body", "surprise"}, true, "body.surprise true is not supported"},
      {{"body", "surprise"}, "", "body.surprise \"\" is not supported"},
      {{"body", "max_tokens"}, -2, "body.max_tokens -2 must be a whole number from 1"},
      {{"body", "max_tokens"}, 5.5, "body.max_tokens 5.5 must be a whole number"},
      {{"body", "seed"}, -1e19, "body.seed -1e+19 must be a whole number"},
      {{"body", "seed"}, 18446744073709551616.0, "body.seed 1.8446744073709552e+19 must be a whole number"},
      {{"body", "top_k"}, -2, "body.top_k -2 must be a whole number from -1"},
      {{"body", "tool_choice"}, "required", "body.tool_choice \"required\" needs tools"},
      {{"body", "modalities"}, {"text", "audio"}, "body.modalities"},
      {{"body", "web_search_options"}, json::object(), "body.web_search_options {} is not supported"},
      {{"body", "store"}, true, "body.store true is not supported"},
      {{"body", "service_tier"}, "flex", "body.service_tier \"flex\" is not supported"},
      {{"body", "reasoning_effort"},
       "huge",
       "body.reasoning_effort \"huge\" is not supported: only \"none\" or \"low\" or \"medium\" or \"high\" is"},
      {{"body", "chat_template_kwargs"}, {{"enable_thinking", true}}, "body.chat_template_kwargs"},
      {{"body", "repetition_penalty"}, 0, "body.repetition_penalty 0 must be from 0.01"},
      {{"body", "ignore_eos"}, true, "body.ignore_eos true is not supported"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", "a"}, {"tool_calls", {{{"id", "x"}}}}}},
       "body.messages[0] has tool_calls, which only an assistant message may have"},
      {{"body", "messages"},
       {{{"role", "assistant"}, {"tool_calls", {{{"id", "x"}}}}}, {{"role", "user"}, {"content", "a"}}},
       "body.messages[0] has a tool call without a function's name"},
      {{"body", "messages"},
       {{{"role", "assistant"}, {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", 5}}}}}}},
        {{"role", "user"}, {"content", "a"}}},
       "body.messages[0] has a tool call whose arguments are neither"},
      {{"body", "messages"},
       {{{"role", "user"}, {"content", "a"}, {"audio", {{"id", "x"}}}}},
       "has a message with audio"},
  };
  for (const Case& one : cases) {
    json line = chat();
    json* at = &line;
    for (const std::string& key : one.path) at = &(*at)[key];
    *at = one.value;
    expect_error(ExitCode::kBadInput, "in: line 7", {one.says}, [&line] { parse(line); });
  }
  json both = completion();
  both["body"]["messages"] = chat()["body"]["messages"];
  expect_error(ExitCode::kBadInput, "in: line 7", {"body.messages"}, [&both] { parse(both); });
  expect_error(ExitCode::kBadInput, "in: line 7", {"not valid JSON"}, [] { parse_batch_line("{", "in: line 7"); });
  expect_error(ExitCode::kBadInput, "in: line 7", {}, [] { parse_batch_line("{\"a\xff\":1}", "in: line 7"); });
  expect_error(ExitCode::kBadInput, "in: line 7", {}, [] { parse_batch_line(R"({"a":1,"a":2})", "in: line 7"); });
}

TEST(Requests, ReasoningEffort) {
  json line = chat();
  EXPECT_EQ(parse(line).request.conversation.effort, "");
  for (const char* const effort : {"low", "medium", "high", "none"}) {
    line["body"]["reasoning_effort"] = effort;
    const Request request = parse(line).request;
    const bool none = std::string(effort) == "none";
    EXPECT_EQ(request.conversation.effort, none ? "" : effort);
    EXPECT_EQ(request.conversation.no_thinking, none);
    const std::string body = json{{"model", "m"}, {"input", "q"}, {"reasoning", {{"effort", effort}}}}.dump();
    const Request response = parse_request(body, RequestKind::kResponse, "request");
    EXPECT_EQ(response.conversation.effort, none ? "" : effort);
    EXPECT_EQ(response.conversation.no_thinking, none);
  }
}

TEST(Requests, ValuesThatAskForNothingAreTaken) {
  const json neutral = {{"n", 1.0},
                        {"best_of", 1},
                        {"echo", false},
                        {"presence_penalty", 0},
                        {"frequency_penalty", 0.0},
                        {"logit_bias", json::object()},
                        {"suffix", ""},
                        {"tools", json::array()},
                        {"tool_choice", "auto"},
                        {"functions", json::array()},
                        {"function_call", "none"},
                        {"parallel_tool_calls", true},
                        {"modalities", {"text"}},
                        {"store", false},
                        {"service_tier", "auto"},
                        {"reasoning_effort", "none"},
                        {"metadata", {{"a", {1, 2}}}},
                        {"user", ""},
                        {"stop", ""},
                        {"max_tokens", -1},
                        {"top_k", -1},
                        {"min_p", 0},
                        {"repetition_penalty", 1.0},
                        {"top_logprobs", 0},
                        {"logprobs", nullptr},
                        {"stream_options", nullptr},
                        {"response_format", {{"type", "text"}}},
                        {"min_tokens", 0},
                        {"ignore_eos", false},
                        {"skip_special_tokens", true},
                        {"length_penalty", 1},
                        {"use_beam_search", false},
                        {"chat_template_kwargs", {{"enable_thinking", false}}},
                        {"cache_prompt", true},
                        {"mirostat", 0},
                        {"dry_multiplier", 0.0},
                        {"typical_p", 1.0},
                        {"grammar", ""},
                        {"n_probs", 0},
                        {"prediction", {{"type", "content"}, {"content", "x"}}},
                        {"prompt_cache_options", {{"ttl", "1h"}}},
                        {"web_search_options", nullptr},
                        {"verbosity", "medium"},
                        {"safety_identifier", "me"},
                        {"whatever_it_is", nullptr}};
  for (const auto& [name, value] : neutral.items()) {
    for (json line : {chat(), completion()}) {
      line["body"][name] = value;
      EXPECT_NO_THROW(parse(line)) << name;
    }
  }
  json line = chat();
  line["body"].update({{"max_tokens", -1}, {"top_k", -1}, {"stop", {"", "x"}}});
  GenerateOptions options;
  parse(line).request.apply(&options);
  EXPECT_EQ(options.max_tokens, -1);
  EXPECT_EQ(options.sampling.top_k, 0);
  EXPECT_EQ(options.stop, std::vector<std::string>{"x"});
}

TEST(Requests, NumbersHaveTheRangeThatClientsSend) {
  const auto seed_of = [](const std::string& number) {
    json line = completion();
    line["body"]["seed"] = "SEED";
    std::string text = line.dump();
    text.replace(text.find("\"SEED\""), 6, number);
    return *parse_batch_line(text, "in").request.seed;
  };
  EXPECT_EQ(seed_of("9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(seed_of("18446744073709551615"), UINT64_MAX);
  EXPECT_EQ(seed_of("-9223372036854775808"), uint64_t{1} << 63);
  EXPECT_EQ(seed_of("5.0"), 5u);
  EXPECT_EQ(seed_of("1e19"), 10000000000000000000u);
  for (const char* wrong : {"1e400", "-1e400", "18446744073709551616", "5.5", "\"5\""}) {
    expect_error(ExitCode::kBadInput, "in", {"body.seed"}, [&] { seed_of(wrong); });
  }
  json line = completion();
  line["body"].update({{"max_tokens", 1e18}, {"top_k", 1e12}});
  EXPECT_GT(*parse(line).request.max_tokens, int64_t{1} << 39);
  EXPECT_EQ(*parse(line).request.top_k, INT32_MAX);
}

TEST(Requests, APromptMayBeAListOfOneText) {
  json line = completion();
  line["body"]["prompt"] = {"hello"};
  EXPECT_EQ(parse(line).request.prompt, "hello");
  const std::pair<json, const char*> wrong[] = {{{"a", "b"}, "has 2 prompts"},
                                                {json::array(), "is an empty list"},
                                                {{1, 2}, "token ids are not supported"},
                                                {json::array({{1, 2}}), "token ids are not supported"},
                                                {5, "must be a string"}};
  for (const auto& [prompt, says] : wrong) {
    line["body"]["prompt"] = prompt;
    expect_error(ExitCode::kBadInput, "in", {"body.prompt", says}, [&line] { parse(line); });
  }
}

// The rest of the line is a request as any other.
TEST(Requests, ALoneSurrogateBecomesAReplacement) {
  std::string text = completion().dump();
  text.replace(text.find("hello"), 5, "a\\ud83d b");
  const BatchLine line = parse_batch_line(text, "in");
  EXPECT_EQ(line.custom_id, "two");
  EXPECT_EQ(line.request.prompt, "a\xEF\xBF\xBD b");
}

TEST(Requests, TheIdentityIsKnownWhereTheRestIsWrong) {
  json line = chat();
  line["url"] = "/elsewhere";
  std::string id;
  EXPECT_THROW(parse_batch_line(line.dump(), "in", &id), Error);
  EXPECT_EQ(id, "one");
}

TEST(Request, OptionsOfAStreamThatAskForNothing) {
  const auto parse_with = [](const std::string& fields) {
    return parse_request(R"({"model":"m","prompt":"q",)" + fields + "}", RequestKind::kCompletion, "r");
  };
  for (const char* const options : {"{}", R"({"include_usage":false})", R"({"include_usage":null})", "null"}) {
    EXPECT_NO_THROW(parse_with(str("\"stream\":false,\"stream_options\":", options))) << options;
  }
  expect_error(ExitCode::kBadInput, "r", {"stream_options", "needs \"stream\": true"},
               [&] { parse_with(R"("stream_options":{"include_usage":true})"); });
}

// By each of the fields, in the order of the schema's properties.
TEST(Request, AnswersByASchema) {
  const std::string schema = R"({"properties":{"z":{"const":1},"a":{"const":2}},"required":["z","a"]})";
  const std::string start = R"({"model":"m","messages":[{"role":"user","content":"q"}],)";
  const auto of = [&](const std::string& field) {
    return parse_request(start + field + "}", RequestKind::kChat, "request").grammar;
  };
  const auto has = [](const Grammar& grammar, std::string_view text) {
    Automaton automaton(grammar);
    return automaton.complete(automaton.after(automaton.start(), text));
  };
  for (const std::string& field :
       {R"("response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":)" + schema + "}}",
        R"("response_format":{"type":"json_object","schema":)" + schema + "}", "\"guided_json\":" + schema,
        "\"guided_json\":" + json(schema).dump(), "\"json_schema\":" + schema,
        R"("structured_outputs":{"json":)" + schema + "}"}) {
    const std::shared_ptr<const Grammar> grammar = of(field);
    ASSERT_NE(grammar, nullptr) << field;
    EXPECT_TRUE(has(*grammar, R"({"z":1,"a":2})")) << field;
    EXPECT_FALSE(has(*grammar, R"({"a":2,"z":1})")) << field;
  }
  for (const char* const field :
       {R"("response_format":{"type":"json_object"})", R"("structured_outputs":{"json_object":true})"}) {
    EXPECT_TRUE(has(*of(field), R"({"any":[]})")) << field;
    EXPECT_FALSE(has(*of(field), "[]")) << field;
  }
  for (const char* const field : {R"("response_format":{"type":"text"})", R"("guided_json":{})",
                                  R"("response_format":null)", R"("structured_outputs":{})", R"("n":1)"}) {
    EXPECT_EQ(of(field), nullptr) << field;
  }
  expect_error(ExitCode::kBadInput, "request", {"guided_json", "second answer format"},
               [&] { of(R"("response_format":{"type":"json_object"},"guided_json":{"type":"null"})"); });
  const std::string line = R"({"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":)" + start +
                           "\"guided_json\":" + schema + "}}";
  EXPECT_TRUE(has(*parse_batch_line(line, "line").request.grammar, R"({"z":1,"a":2})"));
}

TEST(Request, HasPenalties) {
  const auto of = [](const std::string& fields) {
    return parse_request(R"({"model":"m","messages":[{"role":"user","content":"q"}],)" + fields + "}",
                         RequestKind::kChat, "r");
  };
  GenerateOptions options;
  of(R"("presence_penalty":0.5,"frequency_penalty":-1,"repetition_penalty":1.2,"repeat_last_n":-1)").apply(&options);
  EXPECT_EQ(options.penalties, (PenaltySettings{.presence = 0.5f, .frequency = -1, .repetition = 1.2f}));
  GenerateOptions usual;
  usual.penalties.presence = 1;
  of(R"("frequency_penalty":0)").apply(&usual);
  EXPECT_EQ(usual.penalties.presence, 1);
  expect_error(ExitCode::kBadInput, "r", {"repeat_last_n 64"},
               [&] { of(R"("repeat_penalty":1.1,"repeat_last_n":64)"); });
}

}  // namespace
}  // namespace headrace
