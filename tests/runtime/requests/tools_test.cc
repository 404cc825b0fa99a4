// Tools of a request, the answers that may call them, and calls in an answer: whole, in pieces of any length,
// malformed.
#include "runtime/requests/tools.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>
#include <vector>

#include "runtime/grammar/automaton.h"
#include "runtime/requests/answer_stream.h"
#include "runtime/requests/request.h"
#include "runtime/requests/tool_calls.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using testing_support::expect_error;

const char* const kTools = R"([
    {"type": "function", "function": {"name": "weather", "description": "Asks.", "strict": true, "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                       "unit": {"enum": ["C", "F"]}, "at": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                       "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}}},
        "required": ["town", "days"], "$defs": {"tag": {"type": "boolean"}}}}},
    {"type": "function", "function": {"name": "now"}}])";

Request request_of(const std::string& more, const std::string& tools = kTools) {
  return parse_request(R"({"model":"m","messages":[{"role":"user","content":"q"}],"tools":)" + tools + more + "}",
                       RequestKind::kChat, "request");
}

struct Shown {
  std::string content;
  std::vector<std::string> calls;  // "name arguments"
  bool operator==(const Shown&) const = default;
};
void PrintTo(const Shown& shown, std::ostream* out) {
  *out << shown.content;
  for (const std::string& call : shown.calls) *out << " [" << call << "]";
}

Shown in_pieces(const std::vector<Tool>& tools, const std::string& text, size_t bytes,
                CallCount count = CallCount::kAny) {
  ToolCallReader reader(tools, count);
  Shown shown;
  const auto add = [&](const ToolCallReader::Parts& parts) {
    shown.content += parts.content;
    for (const ToolCall& call : parts.calls) shown.calls.push_back(call.name + " " + call.arguments);
  };
  for (size_t at = 0; at < text.size(); at += bytes) add(reader.push(std::string_view(text).substr(at, bytes)));
  add(reader.finish());
  return shown;
}

// In pieces of one byte, of some, and whole.
void expect_calls(const std::string& text, const Shown& want) {
  const std::vector<Tool> tools = request_of("").tools.tools;
  for (const size_t bytes : {size_t{1}, size_t{2}, size_t{7}, text.size() + 1}) {
    EXPECT_EQ(in_pieces(tools, text, bytes), want) << bytes << " bytes: " << text;
  }
}

TEST(ToolCalls, InJson) {
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  expect_calls(now, {"", {"now {}"}});
  expect_calls("Let me see. \n\n" + now + "\n" + now + "\n", {"Let me see.", {"now {}", "now {}"}});
  expect_calls(now + "\nDone. ", {"\nDone.", {"now {}"}});
  expect_calls(R"(<tool_call>{"name":"weather","arguments":{"town":"Ulm é","days":2}}</tool_call>)",
               {"", {R"(weather {"town":"Ulm é","days":2})"}});
  expect_calls(R"(<tool_call>{"arguments": {"z": 1, "a": [1.5, null]}, "name": "now"}</tool_call>)",
               {"", {R"(now {"z":1,"a":[1.5,null]})"}});
  expect_calls(R"(<tool_call>{"name": "now", "arguments": "{\"x\": 1}"}</tool_call>)", {"", {R"(now {"x":1})"}});
  expect_calls(R"(<tool_call>{"name": "now"}</tool_call>)", {"", {"now {}"}});
  expect_calls(R"(<tool_call>{"name": "now", "arguments": {"code": "</tool_call>"}}</tool_call>)",
               {"", {R"(now {"code":"</tool_call>"})"}});
  expect_calls(R"(<tool_call>{"name": "now", "arguments": {}})", {"", {"now {}"}});  // the end token came first
}

TEST(ToolCalls, InTags) {
  expect_calls(
      "<tool_call>\n<function=weather>\n<parameter=town>\nUlm\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
      "<parameter=unit>\nC\n</parameter>\n<parameter=tags>\n[true]\n</parameter>\n</function>\n</tool_call>",
      {"", {R"(weather {"town":"Ulm","days":2,"unit":"C","tags":[true]})"}});
  expect_calls("Yes.\n<tool_call>\n<function=now>\n</function>\n</tool_call>", {"Yes.", {"now {}"}});
  // A text stays text, whatever it looks like; its own line breaks stay.
  expect_calls(
      "<tool_call><function=weather><parameter=town>\n\n12\n\n</parameter><parameter=at>null</parameter>"
      "<parameter=other>[1]</parameter><parameter=days>many</parameter></function></tool_call>",
      {"", {R"(weather {"town":"\n12\n","at":null,"other":"[1]","days":"many"})"}});
  expect_calls("<tool_call><function=weather><parameter=town>a</parameter> b</parameter></function></tool_call>",
               {"", {R"(weather {"town":"a</parameter> b"})"}});
}

TEST(ToolCalls, WhatIsMalformedStaysText) {
  for (const char* const text :
       {"plain", "", " a <tool_cal", "<tool_call>", "<tool_call></tool_call>", "<tool_call>[1]</tool_call> x",
        R"(<tool_call>{"name": "nobody", "arguments": {}}</tool_call>)",
        R"(<tool_call>{"name": "now", "arguments": [1]}</tool_call>)",
        R"(<tool_call>{"name": "now", "arguments": "x"}</tool_call>)", R"(<tool_call>{"name": 5}</tool_call>)",
        R"(<tool_call>{"name": "now", "arguments": {"a": 1}</tool_call>)", R"(<tool_call>{"name": "now", "argu)",
        "<tool_call><function=now></tool_call>", "<tool_call><function=now><parameter=a>1</function></tool_call>",
        "<tool_call><function=now</tool_call>", "<tool_call><function=now></function>.</tool_call>",
        "<tool_call><function=now><parameter=a>1</parameter><parameter=a>2</parameter></function></tool_call>",
        "</tool_call> \n", "a\n<tool_call>\xff</tool_call>\n"}) {
    expect_calls(text, {text, {}});
  }
  expect_calls(R"(<tool_call>{"name": "x"}</tool_call> <tool_call>{"name": "now"}</tool_call>)",
               {R"(<tool_call>{"name": "x"}</tool_call>)", {"now {}"}});
  std::string nested = R"(<tool_call>{"name": "now", "arguments": )";
  nested += std::string(1000, '[') + "</tool_call>";
  expect_calls(nested, {nested, {}});
}

// A model that repeats a mark must not hold the thread that sends answers.
TEST(ToolCalls, ReadsLongNonsenseInLinearTime) {
  const std::vector<Tool> tools = request_of("").tools.tools;
  for (const char* const piece : {"<tool_call>", "<tool_call>{\"", "</tool_call>", "<tool_call><function=now>", " \n",
                                  "<tool_call>{\"name\":\"x\"}</tool_call>"}) {
    std::string text;
    while (text.size() < 1'000'000) text += piece;
    EXPECT_EQ(in_pieces(tools, text, 5), (Shown{text, {}})) << piece;
  }
}

// gpt-oss writes calls as messages to a tool; what it thinks before them is not part of the content.
TEST(ToolCalls, InChannels) {
  const ThinkingMarks marks = {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>",
                               true};
  const std::string text =
      "<|channel|>analysis<|message|>They ask for rain.<|end|><|start|>assistant<|channel|>commentary "
      R"(to=functions.weather <|constrain|>json<|message|>{"town": "Ulm </tool_call>", "days": 2}<|call|>)";
  const Request request = request_of("");
  GenerateResult result;
  result.finish_reason = FinishReason::kStop;
  for (const size_t bytes : {size_t{1}, size_t{5}, text.size()}) {
    ThinkingPlace place(marks, false);
    place.show_calls();
    const auto stream = open_answer_stream("key", request, 1);
    std::string events = stream->begin();
    for (size_t at = 0; at < text.size(); at += bytes)
      events += stream->add(place.push(std::string_view(text).substr(at, bytes)), {});
    events += stream->add(place.finish(), {});
    events += stream->end(result);
    std::string thinking, content;
    json calls = json::array();
    std::istringstream lines(events);
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("data: {")) continue;
      const json choice = json::parse(line.substr(6))["choices"][0], delta = choice["delta"];
      thinking += delta.value("reasoning_content", "");
      content += delta.value("content", "");
      for (const json& call : delta.value("tool_calls", json::array())) calls.push_back(call);
      if (!choice["finish_reason"].is_null()) {
        EXPECT_EQ(choice["finish_reason"], "tool_calls");
      }
    }
    EXPECT_EQ(thinking, "They ask for rain.");
    EXPECT_EQ(content, "");
    ASSERT_EQ(calls.size(), 1u);
    EXPECT_EQ(calls[0]["function"]["name"], "weather");
    EXPECT_EQ(calls[0]["function"]["arguments"], R"({"town":"Ulm </tool_call>","days":2})");
  }
  const auto cut = split_thinking(marks, false, text.substr(0, text.find(", \"days")), true);
  EXPECT_TRUE(split_tool_calls(request.tools.tools, CallCount::kAny, cut.answer).calls.empty());
}

// A call whose arguments have not begun is one only if the model ended it.
TEST(ToolCalls, ACallThatIsCutIsNone) {
  const Request request = request_of("");
  const ThinkingMarks marks = {"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>",
                               true};
  const auto calls = [&](const std::string& text, bool cut) {
    const ThinkingPlace::Parts parts = split_thinking(marks, false, text, true, cut);
    return split_tool_calls(request.tools.tools, CallCount::kAny, parts.answer).calls.size();
  };
  const std::string header = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>";
  EXPECT_EQ(calls(header, false), 1u);
  EXPECT_EQ(calls(header, true), 0u);
  EXPECT_EQ(calls(header + " \n", true), 0u);
  EXPECT_EQ(calls(header + "{}", true), 1u);
  EXPECT_EQ(calls(header + "<|end|>", true), 1u);
}

TEST(ToolCalls, AMessageHasAtMost256) {
  const auto chat_of = [](int count) {
    const json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "now"}, {"arguments", "{}"}}}};
    const json messages = {
        {{"role", "user"}, {"content", "q"}},
        {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", std::vector<json>(count, call)}},
        {{"role", "tool"}, {"content", "a"}, {"tool_call_id", "c"}}};
    return parse_request(json{{"model", "m"}, {"messages", messages}}.dump(), RequestKind::kChat, "request");
  };
  EXPECT_EQ(chat_of(256).conversation.messages[1]["tool_calls"].size(), 256u);
  expect_error(ExitCode::kBadInput, "request", {"messages[1]", "has 257 tool_calls: at most 256"},
               [&] { chat_of(257); });
  const auto response_of = [](int count) {
    const json call = {{"type", "function_call"}, {"call_id", "c"}, {"name", "now"}, {"arguments", "{}"}};
    json input = std::vector<json>(count, call);
    input.push_back({{"type", "function_call_output"}, {"call_id", "c"}, {"output", "a"}});
    return parse_request(json{{"model", "m"}, {"input", input}}.dump(), RequestKind::kResponse, "request");
  };
  EXPECT_EQ(response_of(256).conversation.messages[0]["tool_calls"].size(), 256u);
  expect_error(ExitCode::kBadInput, "request", {"input[256]", "at most 256"}, [&] { response_of(257); });
}

TEST(ToolCalls, OneAloneWithoutParallelCalls) {
  const Request request = request_of(R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(request.tools.count, CallCount::kOne);
  const std::string now = R"(<tool_call>{"name": "now"}</tool_call>)";
  EXPECT_EQ(in_pieces(request.tools.tools, now + now, 3, CallCount::kOne), (Shown{"", {"now {}"}}));
}

TEST(Tools, AreHandedToTheTemplateInTheirOrder) {
  const Request request = request_of("");
  EXPECT_EQ(request.tools.choice, ToolChoice::kAuto);
  const std::string first = request.tools.definitions[0].dump();
  EXPECT_EQ(first.find("strict"), std::string::npos) << first;
  EXPECT_TRUE(first.starts_with(
      R"({"type":"function","function":{"name":"weather","description":"Asks.","parameters":{"type":"object","prop)"))
      << first;
  EXPECT_LT(first.find("\"town\""), first.find("\"days\""));
  EXPECT_EQ(request.tools.definitions[1].dump(),
            R"({"type":"function","function":{"name":"now","parameters":{"type":"object","properties":{}}}})");
  const Request none = request_of(R"(,"tool_choice":"none")");
  EXPECT_TRUE(none.tools.definitions.is_null());
  EXPECT_TRUE(none.tools.tools.empty());
  EXPECT_TRUE(request_of("", "[]").tools.definitions.is_null());
  EXPECT_TRUE(request_of(R"(,"tool_choice":"auto")", "null").tools.definitions.is_null());
}

TEST(Tools, AChoiceNamesWhatMayBeCalled) {
  EXPECT_EQ(request_of(R"(,"tool_choice":"required")").tools.tools.size(), 2u);
  const Request named = request_of(R"(,"tool_choice":{"type":"function","function":{"name":"now"}})");
  EXPECT_EQ(named.tools.choice, ToolChoice::kRequired);
  ASSERT_EQ(named.tools.tools.size(), 1u);
  EXPECT_EQ(named.tools.tools[0].name, "now");
  EXPECT_EQ(named.tools.definitions.size(), 2u);  // the template prints all
}

TEST(Tools, AreRefusedByName) {
  const auto refused = [](const std::string& tools, const std::string& more, const char* says) {
    SCOPED_TRACE(tools + more);
    expect_error(ExitCode::kBadInput, "request", {says}, [&] { request_of(more, tools); });
  };
  refused("5", "", "tools 5 must be a list");
  refused("[5]", "", "tools[0] has the type 5");
  refused(R"([{"type":"web_search"}])", "", "tools[0] has the type \"web_search\": only \"function\"");
  refused(R"([{"type":"function"}])", "", "tools[0] has no function");
  refused(R"([{"type":"function","function":{}}])", "", "tools[0] needs a name");
  refused(R"([{"type":"function","function":{"name":"a b"}}])", "", "tools[0] needs a name of letters");
  refused(R"([{"type":"function","function":{"name":"a","x":1}}])", "", "tools[0] has \"x\", which is not");
  refused(R"([{"type":"function","function":{"name":"a","description":1}}])", "", "a description that is not a string");
  refused(R"([{"type":"function","function":{"name":"a","parameters":[]}}])", "", "parameters that are not an object");
  refused(R"([{"type":"function","function":{"name":"a","parameters":{"type":"string"}}}])", "",
          "not an object schema");
  refused(R"([{"type":"function","function":{"name":"a"}},{"type":"function","function":{"name":"a"}}])", "",
          "tools[1] repeats the name of another tool");
  refused(kTools, R"(,"tool_choice":"any")", "tool_choice \"any\" is not supported");
  refused(kTools, R"(,"tool_choice":{"type":"function","function":{"name":"x"}})", "names a function that is not");
  refused("[]", R"(,"tool_choice":"required")", "tool_choice \"required\" needs tools");
  refused(R"([{"type":"function","function":{"name":"a","strict":1}}])", "", "tools[0] has the strict 1, not true or");
  refused("[]", R"(,"response_format":{"type":"json_schema","json_schema":{"schema":{},"strict":"yes"}})",
          "has the strict \"yes\", not true or false");
  refused(kTools, R"(,"parallel_tool_calls":1)", "parallel_tool_calls 1 must be true or false");
  expect_error(ExitCode::kBadInput, "request", {"tools", "belongs to chat completions"}, [] {
    parse_request(str(R"({"model":"m","prompt":"q","tools":)", kTools, "}"), RequestKind::kCompletion, "request");
  });
}

// Each text of the grammar is a call that is read as such, with arguments by the schema.
TEST(Tools, AnAnswerThatMustCall) {
  const auto accepts = [](const char* choice, CallForm form, const std::string& text) {
    const Request request = request_of(str(",\"tool_choice\":", choice));
    const std::shared_ptr<const Grammar> grammar =
        call_grammar(request.tools, form, BesideCalls::kNothing, nullptr, "tools");
    Automaton automaton(*grammar);
    const bool has = automaton.complete(automaton.after(automaton.start(), text));
    const auto parts = split_tool_calls(request.tools.tools, request.tools.count, text);
    if (has) {
      EXPECT_TRUE(parts.content.empty() && !parts.calls.empty()) << text;
    }
    return has;
  };
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  const std::string weather =
      "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"U\", \"days\": 2, \"tags\": "
      "[true]}}\n</tool_call>";
  const char* const named = R"({"type":"function","function":{"name":"now"}})";
  for (const std::string& text : {now, weather, now + "\n" + weather}) {
    EXPECT_TRUE(accepts("\"required\"", CallForm::kJson, text)) << text;
  }
  EXPECT_TRUE(accepts(named, CallForm::kJson, now));
  for (const std::string& text :
       {std::string(), std::string("hello"), now + now, now + " ",
        std::string("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"U\"}}\n</tool_call>"),
        std::string("<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>")}) {
    EXPECT_FALSE(accepts("\"required\"", CallForm::kJson, text)) << text;
  }
  EXPECT_FALSE(accepts(named, CallForm::kJson, weather));
  EXPECT_FALSE(accepts(named, CallForm::kJson, now + "\n" + now));

  const std::string tagged_now = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
  const auto tagged = [](const std::string& more) {
    return "<tool_call>\n<function=weather>\n<parameter=town>\nUlm\nor <so>\n</parameter>\n" + more +
           "</function>\n</tool_call>";
  };
  const std::string days = "<parameter=days>\n7\n</parameter>\n";
  for (const std::string& text :
       {tagged_now, tagged(days), tagged(days + "<parameter=unit>\nF\n</parameter>\n"),
        tagged_now + "\n" + tagged(days), tagged(days + "<parameter=tags>\n[true, false]\n</parameter>\n")}) {
    EXPECT_TRUE(accepts("\"required\"", CallForm::kXml, text)) << text;
  }
  for (const std::string& text :
       {std::string("x"), tagged(""), tagged(days + "<parameter=unit>\nK\n</parameter>\n"),
        tagged("<parameter=days>\n70\n</parameter>\n"), tagged(days + "<parameter=tags>\n[1]\n</parameter>\n")}) {
    EXPECT_FALSE(accepts("\"required\"", CallForm::kXml, text)) << text;
  }
  EXPECT_FALSE(accepts(named, CallForm::kXml, tagged(days)));
}

bool has_text(const Grammar& grammar, const std::string& text) {
  Automaton automaton(grammar);
  return automaton.complete(automaton.after(automaton.start(), text));
}

// strict with tool_choice auto: any text, but each call is valid by its schema.
TEST(Tools, AnAnswerWithStrictCalls) {
  const Request request = request_of("");
  EXPECT_TRUE(request.tools.tools[0].strict);
  EXPECT_FALSE(request.tools.tools[1].strict);
  for (const CallForm form : {CallForm::kJson, CallForm::kXml}) {
    const auto grammar = call_grammar(request.tools, form, BesideCalls::kText, nullptr, "tools");
    const auto call = [form](const std::string& days) {
      return form == CallForm::kJson
                 ? "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"town\": \"U\", \"days\": " + days +
                       "}}\n</tool_call>"
                 : "<tool_call>\n<function=weather>\n<parameter=town>\nU\n</parameter>\n<parameter=days>\n" + days +
                       "\n</parameter>\n</function>\n</tool_call>";
    };
    for (const std::string& text : {std::string(), std::string("It rains. {\"a\": <tool_cal"), call("2"),
                                    "Let me see.\n" + call("9"), call("1") + "\n" + call("2")}) {
      EXPECT_TRUE(has_text(*grammar, text)) << text;
    }
    for (const std::string& text : {call("10"), "x" + call("\"2\""), call("2") + " Done.", std::string("<tool_call>"),
                                    std::string("a <tool_call>\n{\"name\": \"other\"}\n</tool_call>")}) {
      EXPECT_FALSE(has_text(*grammar, text)) << text;
    }
  }
}

// With a response_format an answer is either calls or by that form.
TEST(Tools, AnAnswerByAFormOrCalls) {
  const Request request = request_of(
      R"(,"response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"enum":[1,"two"]}}})");
  ASSERT_NE(request.grammar, nullptr);
  const auto grammar =
      call_grammar(request.tools, CallForm::kJson, BesideCalls::kNothing, request.grammar.get(), "tools");
  EXPECT_NE(grammar->text, request.grammar->text);
  const std::string now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
  for (const std::string& text : {std::string("1"), std::string("\"two\""), now, now + "\n" + now}) {
    EXPECT_TRUE(has_text(*grammar, text)) << text;
  }
  for (const std::string& text : {std::string("3"), "1" + now, "Well. " + now, std::string()}) {
    EXPECT_FALSE(has_text(*grammar, text)) << text;
  }
}

TEST(Tools, ASchemaThatIsNotSupportedHasItsToolsName) {
  const Request request = request_of(R"(,"tool_choice":"required")",
                                     R"([{"type":"function","function":{"name":"a"}},
          {"type":"function","function":{"name":"b","parameters":{"properties":{"x":{"not":{}}}}}}])");
  for (const CallForm form : {CallForm::kJson, CallForm::kXml}) {
    expect_error(ExitCode::kBadInput, "tools[1].function.parameters", {"properties.x", "not"},
                 [&] { call_grammar(request.tools, form, BesideCalls::kNothing, nullptr, "tools"); });
  }
}

}  // namespace
}  // namespace headrace
