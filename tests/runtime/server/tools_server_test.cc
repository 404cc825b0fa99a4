// Calls of tools and /v1/responses: whole and streamed, by a model whose answers a grammar makes.
#include <sstream>

#include "tests/cli/tiny_model.h"
#include "tests/runtime/server/server_fixture.h"
#include "tests/support/refusal.h"
#include "tests/support/temporary_folder.h"

namespace headrace {
namespace {

using nlohmann::json;

class ToolServerTest : public ServerTest {
 protected:
  ToolServerTest() {
    write_tiny_model(folder_ / "tools");
    EngineOptions options;
    options.model = folder_ / "tools";
    options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
    options.chat_template_file = HEADRACE_TEST_DATA "/tools.jinja";
    engine_ = std::make_unique<Engine>(options);
    used_ = engine_.get();
    usual_.max_tokens = 200;
    usual_.ignore_eos = false;
    start();
  }
  ~ToolServerTest() override { stop(); }

  static json tools() {
    return json::parse(R"([{"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
        "properties": {"town": {"enum": ["Ulm", "Bonn"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["town", "days"]}}}, {"type": "function", "function": {"name": "now"}}])");
  }
  static json flat_tools() {
    json list = json::array();
    for (json tool : tools()) {
      tool["function"]["type"] = "function";
      list.push_back(tool["function"]);
    }
    return list;
  }
  static void check_weather(const std::string& arguments) {
    const json value = json::parse(arguments);
    EXPECT_EQ(value.size(), 2u) << arguments;
    EXPECT_TRUE(value["town"] == "Ulm" || value["town"] == "Bonn") << arguments;
    EXPECT_TRUE(value["days"] >= 1 && value["days"] <= 9) << arguments;
  }

  // The JSON of the events; *names: theirs, "" where they have none.
  static std::vector<json> data_of(const std::string& body, std::vector<std::string>* names) {
    std::vector<json> found;
    std::istringstream in(body);
    std::string name;
    for (std::string line; std::getline(in, line);) {
      if (line.starts_with("event: ")) name = line.substr(7);
      if (!line.starts_with("data: {")) continue;
      found.push_back(json::parse(line.substr(6)));
      names->push_back(std::exchange(name, ""));
    }
    return found;
  }

  std::unique_ptr<Engine> engine_;
};

constexpr const char *kChatPath = "/v1/chat/completions", *kResponsePath = "/v1/responses";

// With a response_format each answer is a call or has the form; strict calls have their schema.
TEST_F(ToolServerTest, AFormBesideTools) {
  json strict = tools();
  strict[0]["function"]["strict"] = true;
  const json form = {{"type", "json_schema"},
                     {"json_schema", {{"name", "n"}, {"strict", true}, {"schema", {{"enum", {"dry", "wet"}}}}}}};
  for (int seed = 0; seed < 6; ++seed) {
    json more = {{"tools", strict}, {"seed", seed}, {"temperature", 1.5}};
    if (seed % 2 == 0) more["response_format"] = form;
    const json choice = answer(kChatPath, chat("Weather?", more))["choices"][0];
    const json calls = choice["message"].value("tool_calls", json::array());
    for (const json& call : calls) {
      if (call["function"]["name"] == "weather") check_weather(call["function"]["arguments"]);
    }
    if (seed % 2 != 0 || !calls.empty()) continue;
    const std::string text = choice["message"]["content"];
    EXPECT_TRUE(text.ends_with("\"dry\"") || text.ends_with("\"wet\"")) << text;
  }
}

TEST_F(ToolServerTest, ANamedFunctionIsCalled) {
  const json named = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  json body = chat("Weather?", {{"tools", tools()}, {"tool_choice", named}});
  const json whole = answer(kChatPath, body)["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "tool_calls") << whole;
  EXPECT_TRUE(whole["message"]["content"].is_null());
  ASSERT_EQ(whole["message"]["tool_calls"].size(), 1u) << whole;
  const json& call = whole["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  check_weather(call["function"]["arguments"]);

  body["stream"] = true;
  json streamed = json::array();
  std::string reason;
  std::vector<std::string> names;
  for (const json& piece : data_of(post(kChatPath, body).body, &names)) {
    const json& choice = piece["choices"][0];
    EXPECT_EQ(choice["delta"].value("content", ""), "");
    for (const json& delta : choice["delta"].value("tool_calls", json::array())) streamed.push_back(delta);
    if (!choice["finish_reason"].is_null()) reason = choice["finish_reason"];
  }
  EXPECT_EQ(reason, "tool_calls");
  ASSERT_EQ(streamed.size(), 1u);
  EXPECT_EQ(streamed[0]["index"], 0);
  EXPECT_EQ(streamed[0]["type"], "function");
  EXPECT_EQ(streamed[0]["function"], call["function"]);
  EXPECT_TRUE(streamed[0]["id"].get<std::string>().starts_with("call_"));

  // The client runs the tool and asks on.
  json history = body["messages"];
  history.push_back(whole["message"]);
  history.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "rain"}});
  const json next = answer(kChatPath, {{"model", "m"}, {"messages", history}, {"tools", tools()}, {"max_tokens", 5}});
  EXPECT_GT(next["usage"]["prompt_tokens"], 100);
  EXPECT_EQ(next["choices"][0]["finish_reason"], "length");
}

TEST_F(ToolServerTest, AnAnswerThatIsCutIsText) {
  const json whole =
      answer(kChatPath, chat("?", {{"tools", tools()}, {"tool_choice", "required"}, {"max_tokens", 12}}))["choices"][0];
  EXPECT_EQ(whole["finish_reason"], "length");
  EXPECT_EQ(whole["message"]["content"], "<tool_call>\n");
  EXPECT_FALSE(whole["message"].contains("tool_calls"));
}

TEST_F(ToolServerTest, AFreeAnswerHasItsText) {
  const json with = chat("Weather?", {{"tools", tools()}, {"max_tokens", 30}});
  const json whole = answer(kChatPath, with)["choices"][0];
  ASSERT_TRUE(whole["message"]["content"].is_string()) << whole;
  json streamed = with;
  streamed["stream"] = true;
  std::string text;
  std::vector<std::string> names;
  for (const json& piece : data_of(post(kChatPath, streamed).body, &names)) {
    text += piece["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, whole["message"]["content"]);
  json none = with;
  none["tool_choice"] = "none";  // the template has none then
  EXPECT_LT(answer(kChatPath, none)["usage"]["prompt_tokens"], answer(kChatPath, with)["usage"]["prompt_tokens"]);
}

TEST_F(ToolServerTest, ResponsesAreTheAnswersOfChats) {
  const json told =
      answer(kChatPath,
             {{"model", "m"},
              {"max_tokens", 20},
              {"messages", {{{"role", "system"}, {"content", "Be brief."}}, {{"role", "user"}, {"content", "Why?"}}}}});
  const json body = {{"model", "m"}, {"input", "Why?"}, {"instructions", "Be brief."}, {"max_output_tokens", 20}};
  const json whole = answer(kResponsePath, body);
  EXPECT_EQ(whole["object"], "response");
  EXPECT_EQ(whole["status"], "incomplete");
  EXPECT_EQ(whole["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(whole["instructions"], "Be brief.");
  ASSERT_EQ(whole["output"].size(), 1u);
  EXPECT_EQ(whole["output"][0]["type"], "message");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], told["choices"][0]["message"]["content"]);
  EXPECT_EQ(whole["usage"]["input_tokens"], told["usage"]["prompt_tokens"]);
  EXPECT_EQ(whole["usage"]["output_tokens"], 20);

  json streamed = body;
  streamed["stream"] = true;
  std::vector<std::string> names;
  const HttpResponse response = post(kResponsePath, streamed);
  const std::vector<json> events = data_of(response.body, &names);
  EXPECT_EQ(response.body.find("[DONE]"), std::string::npos);
  ASSERT_GE(events.size(), 8u);
  std::string text;
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i]["type"], names[i]);
    EXPECT_EQ(events[i]["sequence_number"], i);
    if (names[i] == "response.output_text.delta") text += events[i]["delta"];
    if (names[i] == "response.output_text.done") {
      EXPECT_EQ(events[i]["text"], text);
    }
  }
  EXPECT_EQ(text, whole["output"][0]["content"][0]["text"]);
  EXPECT_EQ(names[0], "response.created");
  EXPECT_EQ(names[1], "response.in_progress");
  EXPECT_EQ(names[2], "response.output_item.added");
  EXPECT_EQ(names[3], "response.content_part.added");
  EXPECT_EQ(names.back(), "response.incomplete");
  json last = events.back()["response"];
  EXPECT_EQ(last["usage"]["output_tokens"], 20);
  EXPECT_EQ(last["output"][0]["content"], whole["output"][0]["content"]);
}

// A file is sent as OpenAI's clients do, and the answer is that to its text.
TEST_F(ToolServerTest, AFileIsReadAsItsText) {
  const std::string data = "data:text/plain;base64,V2F0ZXIgdHVybnMu", text = "Water turns.\n\nSay it.";
  const auto chat = [](const json& content) {
    return json{{"model", "m"}, {"messages", {{{"role", "user"}, {"content", content}}}}, {"max_tokens", 8}};
  };
  const json file = {{"filename", "a.txt"}, {"file_data", data}}, ask = {{"type", "text"}, {"text", "Say it."}};
  const json with_file = answer("/v1/chat/completions", chat({{{"type", "file"}, {"file", file}}, ask}));
  const json with_text = answer("/v1/chat/completions", chat(text));
  EXPECT_EQ(with_file["choices"], with_text["choices"]);
  EXPECT_EQ(with_file["usage"]["prompt_tokens"], with_text["usage"]["prompt_tokens"]);

  const json input = {{{"role", "user"},
                       {"content",
                        {{{"type", "input_file"}, {"filename", "a.txt"}, {"file_data", data}},
                         {{"type", "input_text"}, {"text", "Say it."}}}}}};
  const json by_file = answer(kResponsePath, {{"model", "m"}, {"input", input}, {"max_output_tokens", 8}});
  const json by_text = answer(kResponsePath, {{"model", "m"}, {"input", text}, {"max_output_tokens", 8}});
  EXPECT_EQ(by_file["output"][0]["content"], by_text["output"][0]["content"]);
  EXPECT_EQ(by_file["usage"], by_text["usage"]);

  EXPECT_EQ(answer("/document", file), (json{{"text", "Water turns."}}));
  for (const json& body : {json{{"filename", "a.pdf"}, {"file_data", "%"}}, json{{"filename", "a.pdf"}, {"x", 1}}}) {
    EXPECT_EQ(answer("/document", body, 400)["error"]["code"], "bad_input") << body;
  }
}

TEST_F(ToolServerTest, AResponseCallsATool) {
  const json body = {{"model", "m"},
                     {"input", {{{"role", "user"}, {"content", {{{"type", "input_text"}, {"text", "Weather?"}}}}}}},
                     {"tools", flat_tools()},
                     {"tool_choice", {{"type", "function"}, {"name", "weather"}}}};
  const json whole = answer(kResponsePath, body);
  EXPECT_EQ(whole["status"], "completed") << whole;
  ASSERT_EQ(whole["output"].size(), 1u) << whole;
  const json& item = whole["output"][0];
  EXPECT_EQ(item["type"], "function_call");
  EXPECT_EQ(item["name"], "weather");
  check_weather(item["arguments"]);
  EXPECT_EQ(whole["tools"], flat_tools());

  json streamed = body;
  streamed["stream"] = true;
  std::vector<std::string> names;
  std::string arguments;
  const std::vector<json> events = data_of(post(kResponsePath, streamed).body, &names);
  for (size_t i = 0; i < events.size(); ++i) {
    if (names[i] == "response.function_call_arguments.delta") arguments += events[i]["delta"];
  }
  EXPECT_EQ(arguments, item["arguments"]);
  EXPECT_EQ(names.back(), "response.completed");

  json history = body["input"];
  history.push_back({{"type", "reasoning"}, {"summary", json::array()}});
  history.push_back(item);
  history.push_back({{"type", "function_call_output"}, {"call_id", item["call_id"]}, {"output", "rain"}});
  const json next = answer(kResponsePath, {{"model", "m"}, {"input", history}, {"max_output_tokens", 5}});
  EXPECT_GT(next["usage"]["input_tokens"], 60);
}

TEST_F(ToolServerTest, AResponseByASchema) {
  const json format = {
      {"type", "json_schema"},
      {"name", "n"},
      {"schema", {{"type", "object"}, {"properties", {{"a", {{"enum", {1, 2}}}}}}, {"required", {"a"}}}}};
  const json whole = answer(kResponsePath, {{"model", "m"}, {"input", "?"}, {"text", {{"format", format}}}});
  const json value = json::parse(whole["output"][0]["content"][0]["text"].get<std::string>());
  EXPECT_TRUE(value["a"] == 1 || value["a"] == 2) << value;
}

TEST(ToolServer, AnEffortThatTheTemplateDoesNotReadIsRefused) {
  const TemporaryFolder folder;
  write_tiny_model(folder.path());
  EngineOptions options;
  options.model = folder.path();
  options.device = {.choice = DeviceChoice::kCpu, .threads = 1};
  options.reasoning_effort = "low";
  for (const char* const file : {"", HEADRACE_TEST_DATA "/tools.jinja"}) {
    options.chat_template_file = file;
    testing_support::expect_error(ExitCode::kUsage, "--reasoning-effort", {"\"low\" is not supported", "does not read"},
                                  [&] { const Engine refused(options); });
  }
}

TEST_F(ToolServerTest, WhatAResponseCannotHaveIsRefusedByName) {
  const std::vector<std::pair<json, const char*>> cases = {
      {{{"input", nullptr}}, "input is missing"},
      {{{"input", 5}}, "input 5 must be a string or a list"},
      {{{"input", json::array()}}, "input [] must be a string or a list"},
      {{{"input", json::array({5})}}, "input[0] is not an object"},
      {{{"input", {{{"role", "tool"}, {"content", "x"}}}}}, "input[0] has the role \"tool\""},
      {{{"input", {{{"type", "item_reference"}, {"id", "x"}}}}}, "input[0] has the type \"item_reference\""},
      {{{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}}}}}}}}, "has an image"},
      {{{"input", {{{"type", "function_call_output"}, {"output", "x"}}}}}, "input[0] needs a string as its call_id"},
      {{{"input", {{{"role", "assistant"}, {"content", "x"}}}}}, "must end with a user or tool message"},
      {{{"previous_response_id", "resp_1"}}, "previous_response_id \"resp_1\" is not supported"},
      {{{"store", true}}, "store true is not supported: only false is"},
      {{{"background", true}}, "background true is not supported"},
      {{{"include", {"reasoning.encrypted_content"}}}, "include"},
      {{{"truncation", "auto"}}, "truncation \"auto\" is not supported"},
      {{{"reasoning", {{"effort", "huge"}}}}, "reasoning"},
      {{{"reasoning", {{"effort", "high"}}}}, "its chat template does not read reasoning_effort"},
      {{{"text", {{"format", {{"type", "xml"}}}}}}, "text"},
      {{{"tools", {{{"type", "web_search"}}}}}, "tools[0] has the type \"web_search\""},
      {{{"max_output_tokens", 0}}, "max_output_tokens 0 must be"},
      {{{"messages", json::array()}}, "messages [] is not supported"},
      {{{"stop", "x"}}, "stop \"x\" is not supported"},
      {{{"surprise", 1}}, "surprise 1 is not supported"},
  };
  for (const auto& [more, says] : cases) {
    json body = {{"model", "m"}, {"input", "x"}};
    body.update(more);
    const json error = answer(kResponsePath, body, 400)["error"];
    EXPECT_NE(error["message"].get<std::string>().find(says), std::string::npos) << error << " " << says;
  }
  const json neutral = {{"model", "m"},
                        {"input", "x"},
                        {"max_output_tokens", 2},
                        {"store", false},
                        {"background", false},
                        {"include", json::array()},
                        {"metadata", {{"a", "b"}}},
                        {"parallel_tool_calls", true},
                        {"previous_response_id", nullptr},
                        {"prompt", nullptr},
                        {"reasoning", {{"effort", "none"}, {"summary", nullptr}}},
                        {"service_tier", "auto"},
                        {"stream", false},
                        {"stream_options", nullptr},
                        {"text", {{"format", {{"type", "text"}}}, {"verbosity", "medium"}}},
                        {"tool_choice", "auto"},
                        {"tools", json::array()},
                        {"top_logprobs", 0},
                        {"truncation", "disabled"},
                        {"user", "me"},
                        {"safety_identifier", "s"},
                        {"prompt_cache_key", "k"},
                        {"conversation", nullptr},
                        {"max_tool_calls", nullptr}};
  EXPECT_EQ(answer(kResponsePath, neutral)["usage"]["output_tokens"], 2);
}

}  // namespace
}  // namespace headrace
