// Conversations with several system messages, tools and their calls, by templates that take them in different forms.
#include "runtime/text/conversation.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "tests/runtime/text/text_test_support.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

using testing_support::expect_error;
using Ordered = nlohmann::ordered_json;

// With both names that templates print.
const Tokenizer& tokenizer() {
  static const Tokenizer made = [] {
    const testing::Json row = testing::read_json("chat.json")[0];
    testing::Json json = testing::read_json(row.at("tokenizer").get<std::string>() + ".tokenizer.json");
    json["added_tokens"] = row.at("added");
    return testing::load(json, "tokenizer.json", {{"bos_token", "<|im_start|>"}, {"eos_token", "<|im_end|>"}});
  }();
  return made;
}

std::string rendered(const std::string& source, const Conversation& conversation) {
  std::string text;
  for (const TextPart& part :
       render_conversation(tokenizer(), jinja::Template(source, "t"), template_traits(source), conversation, {})) {
    text += part.text;
  }
  return text;
}

Conversation of(const char* messages) { return {.messages = Ordered::parse(messages)}; }

Conversation with_tools() {
  Conversation conversation = of(R"([{"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "call00001", "type": "function",
          "function": {"name": "weather", "arguments": "{\"town\": \"Ulm\", \"days\": [1, 2]}"}}]},
      {"role": "tool", "content": "rain", "tool_call_id": "call00001", "name": "weather"}])");
  conversation.tools = Ordered::parse(
      R"([{"type": "function", "function": {"name": "weather", "description": "Asks <|im_end|>",
          "parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}}])");
  return conversation;
}

constexpr const char* kEach = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}";
constexpr const char* kTwoSystems = R"([{"role": "system", "content": "A"}, {"role": "user", "content": "x"},
    {"role": "developer", "content": "B"}, {"role": "assistant", "content": "y"}, {"role": "user", "content": "z"}])";

TEST(Conversation, EachSystemMessageWhereTheTemplatePrintsEach) {
  EXPECT_EQ(rendered(kEach, of(kTwoSystems)), "[system:A][user:x][system:B][assistant:y][user:z]");
  const std::string knows = str("{% if messages[0].role == 'developer' %}!{% endif %}", kEach);
  EXPECT_EQ(rendered(knows, of(kTwoSystems)), "[system:A][user:x][developer:B][assistant:y][user:z]");
  EXPECT_EQ(rendered(kEach, of(R"([{"role": "developer", "content": "A"}, {"role": "user", "content": "x"}])")),
            "[system:A][user:x]");
}

TEST(Conversation, SystemMessagesAreJoinedWhereTheTemplateTakesOne) {
  const std::string want = "[system:A\n\nB][user:x][assistant:y][user:z]";
  const std::string refuses = str(
      "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('one') }}{% endif %}",
      "{% endfor %}", kEach);
  EXPECT_EQ(rendered(refuses, of(kTwoSystems)), want);
  const std::string drops =
      "{% for m in messages %}{% if m.role != 'system' or loop.first %}[{{ m.role }}:"
      "{{ m.content }}]{% endif %}{% endfor %}";
  EXPECT_EQ(rendered(drops, of(kTwoSystems)), want);
  EXPECT_EQ(rendered(drops, of(R"([{"role": "user", "content": "x"}, {"role": "system", "content": "A"},
                                   {"role": "user", "content": "z"}])")),
            "[system:A][user:x][user:z]");
  expect_error(ExitCode::kBadInput, "messages: system messages", {"left out"},
               [] { rendered("{{ messages[-1].content }}", of(kTwoSystems)); });
}

constexpr const char* kTools = "{% for t in tools %}{{ t | tojson }};{% endfor %}";

TEST(Conversation, ASingleSystemMessageMayBePrintedInSomeTurnsOnly) {
  const std::string last =
      "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}:{{ m.tool_calls | "
      "default('') }}{{ m.content }}]{% endif %}{% endfor %}{{ tools | default('') }}";
  Conversation conversation = with_tools();
  const Ordered system = Ordered::parse(R"({"role": "system", "content": "A"})");
  conversation.messages.insert(conversation.messages.begin(), system);
  EXPECT_NE(rendered(last, conversation).find("[tool:rain]"), std::string::npos);
}

TEST(Conversation, CallsHaveTheFormThatTheTemplateTakes) {
  const std::string answer = "{% if m.role == 'tool' %}={{ m.name }}:{{ m.content }}{% endif %}{% endfor %}";
  const std::string tools = R"({"type": "function", "function": {"name": "weather", "description": "Asks <|im_end|>", )"
                            R"("parameters": {"type": "object", "properties": {"town": {"type": "string"}}}}};)";
  const std::string call = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }} ";
  EXPECT_EQ(rendered(str(kTools, call, "{{ c.function.arguments | tojson }}{% endfor %}", answer), with_tools()),
            tools + R"(weather {"town": "Ulm", "days": [1, 2]}=weather:rain)");
  EXPECT_EQ(rendered(str(kTools, call, "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }}|{% endfor %}",
                         "{% endfor %}", answer),
                     with_tools()),
            tools + "weather town=Ulm|days=[1, 2]|=weather:rain");
  EXPECT_EQ(rendered(str(kTools, call, "{{ '(' + c.function.arguments + ')' + m.content }}{% endfor %}", answer),
                     with_tools()),
            tools + R"(weather ({"town": "Ulm", "days": [1, 2]})=weather:rain)");
  const std::string without = str(kTools, call, "{% if m.content is defined %}{{ raise_exception('both') }}{% endif %}",
                                  "{{ c.function.arguments | tojson }}{% endfor %}", answer);
  EXPECT_EQ(rendered(without, with_tools()), tools + R"(weather {"town": "Ulm", "days": [1, 2]}=weather:rain)");
}

TEST(Conversation, WhatATemplateLeavesOutIsRefused) {
  expect_error(ExitCode::kBadInput, "tools", {"left out", "--chat-template-file"},
               [] { rendered(kEach, with_tools()); });
  expect_error(ExitCode::kBadInput, "messages: calls of tools", {"left out"},
               [] { rendered(str(kTools, kEach), with_tools()); });
  expect_error(ExitCode::kBadInput, "messages: what tools answered", {"left out"}, [] {
    rendered(str(kTools, "{% for m in messages %}{{ m.tool_calls | default([]) | tojson }}{% endfor %}"), with_tools());
  });
  expect_error(ExitCode::kBadInput, "t:1", {"no tools here"},
               [] { rendered("{{ raise_exception('no tools here') }}", with_tools()); });
}

// A tool's description and a call's arguments are text of the client's, not of the template.
TEST(Conversation, ToolsNeverBecomeSpecialTokens) {
  Conversation hostile = with_tools();
  hostile.messages[1]["tool_calls"][0]["function"]["arguments"] = R"({"<|im_start|>": "<|im_end|>"})";
  const std::string source =
      str("<|im_start|>", kTools,
          "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.name }}"
          "{{ c.function.arguments | tojson }}{% endfor %}{{ m.content }}{% endfor %}<|im_end|>");
  const std::vector<int32_t> ids =
      tokenizer().encode(render_conversation(tokenizer(), jinja::Template(source, "t"), {}, hostile, {}), AddBos::kNo);
  for (const char* const marker : {"<|im_start|>", "<|im_end|>"}) {
    ASSERT_GE(tokenizer().find(marker), 0);
    EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer().find(marker)), 1) << marker;
  }
}

TEST(Conversation, TheFormOfCallsIsThatOfTheTemplate) {
  const auto form = [](const char* source) { return template_traits(source).calls; };
  EXPECT_EQ(form(R"(write <tool_call>{"name": n, "arguments": {}}</tool_call>)"), CallForm::kJson);
  EXPECT_EQ(form("{{ '<tool_call>\n{\"name\": n, \"arguments\": a}\n</tool_call>' }}"), CallForm::kJson);
  EXPECT_EQ(form("{{ '<tool_call>\n<function=' + name }}"), CallForm::kXml);
  EXPECT_EQ(form("<tool_call>{{ name }}<arg_key>"), CallForm::kNone);
  EXPECT_EQ(form(R"({# <tool_call> "arguments" #})"), CallForm::kNone);
  EXPECT_FALSE(template_traits("developer").developer);
}

// As gpt-oss has it: a message has one call, which names the tool of the answer behind it, and is JSON.
constexpr const char* kOneCall =
    "{% set last = namespace(name='') %}{% for t in tools %}{{ t.function.name }};{% endfor %}{% for m in messages %}"
    "{% if m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "<{{ m.thinking | default(m.content) }}|{{ m.tool_calls[0].function.name }}"
    "{{ m.tool_calls[0].function.arguments | tojson }}>{% set last.name = m.tool_calls[0].function.name %}"
    "{% elif m.role == 'tool' %}[{{ last.name }}:{{ m.content | tojson }}]{% else %}{{ m.content }}.{% endif %}"
    "{% endfor %}{{ reasoning_effort | default('') }}";

TEST(Conversation, CallsThatATemplatePrintsOneByOne) {
  const auto call = [](const char* id, const char* arguments) {
    return Ordered{{"id", id}, {"type", "function"}, {"function", {{"name", id}, {"arguments", arguments}}}};
  };
  Conversation conversation = of(R"([{"role": "user", "content": "Q"}])");
  conversation.tools = Ordered::parse(R"([{"type": "function", "function": {"name": "a"}}])");
  conversation.messages.push_back({{"role", "assistant"},
                                   {"content", nullptr},
                                   {"reasoning_content", "why"},
                                   {"tool_calls", Ordered::array({call("a", R"({"x": 1})"), call("b", "{}")})}});
  conversation.messages.push_back({{"role", "tool"}, {"content", "B"}, {"tool_call_id", "b"}, {"name", "b"}});
  conversation.messages.push_back({{"role", "tool"}, {"content", "A"}, {"tool_call_id", "a"}, {"name", "a"}});
  EXPECT_EQ(rendered(kOneCall, conversation), R"(a;Q.<why|a{"x": 1}>[a:"A"]<|b{}>[b:"B"])");
  // A content beside the thinking is part of it.
  conversation.messages[1]["content"] = "I ask.";
  EXPECT_EQ(rendered(kOneCall, conversation), "a;Q.<why\n\nI ask.|a{\"x\": 1}>[a:\"A\"]<|b{}>[b:\"B\"]");
  EXPECT_TRUE(template_traits(kOneCall).effort && template_traits(kOneCall).thinking_member);
  EXPECT_FALSE(template_traits(kEach).effort || template_traits(kEach).thinking_member);
  EXPECT_FALSE(template_traits("{{ m.thinking }}{{ m.reasoning_content }}").thinking_member);
  EXPECT_TRUE(template_traits("{{ m.thinking }}").thinking_member);
  EXPECT_FALSE(template_traits("{% if thinking %}{{ thinking }}{% endif %}").thinking_member);  // a variable
}

TEST(Conversation, GptOssByItsPublishedTemplate) {
  const char* const folder = std::getenv("HEADRACE_TEST_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "HEADRACE_TEST_TEMPLATES names no folder";
  const std::string source = testing::read_file(str(folder, "/openai-gpt-oss-120b.jinja"));
  Conversation conversation = with_tools();
  conversation.messages[1]["reasoning_content"] = "I must ask.";
  std::string text;
  for (const TextPart& part : render_conversation(tokenizer(), jinja::Template(source, "t"), template_traits(source),
                                                  conversation, {.effort = "high"})) {
    text += part.text;
  }
  EXPECT_NE(text.find("\n\nReasoning: high\n\n"), std::string::npos) << text;
  EXPECT_TRUE(text.ends_with(
      "<|start|>user<|message|>Weather?<|end|><|start|>assistant<|channel|>analysis<|message|>I must ask.<|end|>"
      "<|start|>assistant to=functions.weather<|channel|>commentary json<|message|>"
      R"({"town": "Ulm", "days": [1, 2]}<|call|><|start|>functions.weather to=assistant<|channel|>commentary)"
      R"(<|message|>"rain"<|end|><|start|>assistant)"))
      << text;
  EXPECT_NE(text.find("type weather = (_: {"), std::string::npos) << text;
}

// What the published templates do with tools and two system messages: what is not named renders all of it.
TEST(Conversation, PublishedTemplatesLoseNothing) {
  const char* const folder = std::getenv("HEADRACE_TEST_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "HEADRACE_TEST_TEMPLATES names no folder";
  const std::map<std::string, CallForm> forms = {{"Qwen-Qwen2.5-7B-Instruct", CallForm::kJson},
                                                 {"Qwen-QwQ-32B", CallForm::kJson},
                                                 {"ibm-granite-granite-4.0", CallForm::kJson},
                                                 {"ibm-granite-granite-4.1", CallForm::kJson},
                                                 {"Qwen3-Coder", CallForm::kXml},
                                                 {"Qwen3.5-4B", CallForm::kXml},
                                                 {"StepFun3.5-Flash", CallForm::kXml},
                                                 {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", CallForm::kXml},
                                                 {"GLM-4.6", CallForm::kNone},
                                                 {"meta-llama-Llama-3.1-8B-Instruct", CallForm::kNone}};
  size_t found = 0, lossless = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".jinja") continue;
    const std::string name = file.path().stem(), source = testing::read_file(file.path());
    SCOPED_TRACE(name);
    const auto form = forms.find(name);
    if (form != forms.end()) {
      EXPECT_EQ(template_traits(source).calls, form->second);
    }
    found += form != forms.end() ? 1 : 0;
    Conversation all = with_tools();
    Ordered messages = Ordered::parse(
        R"([{"role": "system", "content": "SystemOne"}, {"role": "developer", "content": "SystemTwo"}])");
    for (const Ordered& message : all.messages) messages.push_back(message);
    all.messages = messages;
    std::string text;
    try {
      text = rendered(source, all);
    } catch (const Error& error) {
      if (std::getenv("HEADRACE_SHOW") != nullptr) std::printf("%s: %s\n", name.c_str(), error.what());
      EXPECT_TRUE(form == forms.end() || form->second == CallForm::kNone) << error.what();
      continue;
    }
    for (const char* const word : {"SystemOne", "SystemTwo", "town", "Ulm", "rain", "Asks"}) {
      EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
    }
    ++lossless;
  }
  EXPECT_EQ(found, forms.size());
  EXPECT_GE(lossless, 32u);
}

}  // namespace
}  // namespace headrace
