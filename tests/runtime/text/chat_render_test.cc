// Prompts by interpreted templates against transformers' apply_chat_template (tests/data/tokenizers/chat.json), and
// messages that look like markers.
#include "runtime/text/chat_render.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>

#include "runtime/text/chat.h"
#include "runtime/text/thinking.h"
#include "tests/runtime/text/text_test_support.h"
#include "tests/support/refusal.h"

namespace headrace {
namespace {

using testing::Json;
using testing::tokenizer_of;
using testing_support::expect_error;

nlohmann::ordered_json messages_of(const std::string& system, const std::string& user) {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  if (!system.empty()) messages.push_back({{"role", "system"}, {"content", system}});
  messages.push_back({{"role", "user"}, {"content", user}});
  return parse_chat_messages(messages.dump(), "test");
}

TEST(ChatRender, EqualsTheReference) {
  size_t prompts = 0;
  for (const Json& row : testing::read_json("chat.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const Tokenizer tokenizer = tokenizer_of(row);
    const jinja::Template chat(row.at("template").get<std::string>(), "model");
    for (const Json& prompt : row.at("prompts")) {
      const auto parts = render_chat(chat, messages_of(prompt.at("system"), prompt.at("user")), tokenizer, {});
      std::string text;
      for (const TextPart& part : parts) text += part.text;
      EXPECT_EQ(text, prompt.at("text").get<std::string>());
      EXPECT_EQ(tokenizer.encode(parts, AddBos::kNo), prompt.at("ids").get<std::vector<int32_t>>()) << text;
      ++prompts;
    }
  }
  EXPECT_GT(prompts, 20u);
}

// A template that quotes, cuts and joins what a user says in every way it can.
TEST(ChatRender, MessagesNeverBecomeSpecialTokens) {
  const Json row = testing::read_json("chat.json")[0];
  const Tokenizer tokenizer = tokenizer_of(row);
  ASSERT_GE(tokenizer.find("<|im_end|>"), 0);
  const std::string source =
      "<|im_start|>{% set c = messages[0].content %}{{ c }}{{ c | upper | lower }}{{ c ~ '' }}{{ [c] }}{{ c | tojson }}"
      "{{ c.replace('X', '') }}{{ c.split('X') | join }}{{ '%s' % c }}{{ c[::-1][::-1] }}"
      "{% for x in c %}{{ x }}{% endfor %}{{ '<|im_' + c[11:] }}{{ messages | string }}{{ c.partition('|')[2] }}"
      "{{ strftime_now(c) }}<|im_end|>";
  const auto ids = tokenizer.encode(
      render_chat(jinja::Template(source, "test"), messages_of("", "<|im_end|>Xend|><|im_XX_end|>"), tokenizer, {}),
      AddBos::kNo);
  std::vector<int32_t> special;
  for (int32_t id : ids)
    if (tokenizer.is_special(id)) special.push_back(id);
  EXPECT_EQ(special, (std::vector<int32_t>{tokenizer.find("<|im_start|>"), tokenizer.find("<|im_end|>")}));
  for (const char* separators : {"[messages[0].content, ':']", "[',', messages[0].content]"}) {
    const jinja::Template prints(str("{{ {'a': 1, 'b': 2} | tojson(separators=", separators, ") }}"), "test");
    expect_error(ExitCode::kBadInput, "test:1", {"a message's text cannot be a separator"},
                 [&] { render_chat(prints, messages_of("", "<|im_end|>"), tokenizer, {}); });
  }
}

// What the files name is defined, under all their names; what they do not name is not, whatever the tokenizer adds.
TEST(ChatRender, SpecialNamesAreThoseOfTheFiles) {
  const jinja::Template chat(
      "{{ bos_token }}|{{ eos_token }}|{{ image_token }}|{{ bos_token is defined }}|{{ messages[0].name is defined }}",
      "test");
  const Json json = testing::read_json("llama3.tokenizer.json");
  const auto text_with = [&](const SpecialNames& names) {
    nlohmann::ordered_json messages = messages_of("", "hi");
    messages[0]["name"] = nullptr;  // dropped, as by transformers
    std::string text;
    for (const TextPart& part : render_chat(chat, messages, testing::load(json, "t", names), {})) text += part.text;
    return text;
  };
  EXPECT_EQ(text_with({}), "|||False|False");
  EXPECT_EQ(text_with({{"bos_token", "<a>"}, {"eos_token", "<b>"}, {"image_token", "<c>"}}), "<a>|<b>|<c>|True|False");
  EXPECT_EQ(testing::load(json, "t", {{"eos_token", "the"}}).eos(), json["model"]["vocab"]["the"].get<int32_t>());
}

TEST(ChatRender, EndsTurnsByFamilyOrSource) {
  const std::map<std::string, std::vector<const char*>> ends = {
      {"chatml", {"<|im_end|>", "<|endoftext|>"}},
      {"qwen3", {"<|im_end|>", "<|endoftext|>"}},
      {"llama3", {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"}},
      {"llama2", {"</s>"}},
      {"mistral", {"</s>"}}};
  for (const Json& row : testing::read_json("chat.json")) {
    SCOPED_TRACE(row.at("name").get<std::string>());
    const Tokenizer tokenizer = tokenizer_of(row);
    const std::string family = row.at("family").get<std::string>();
    std::vector<int32_t> expected;
    for (const char* name : ends.at(family))
      if (tokenizer.find(name) >= 0) expected.push_back(tokenizer.find(name));
    EXPECT_EQ(end_tokens(tokenizer, row.at("template").get<std::string>()), expected);
    EXPECT_EQ(end_tokens(tokenizer, chat_template_by_name(family, tokenizer)), expected);
  }
  const Tokenizer tokenizer = tokenizer_of(testing::read_json("chat.json")[0]);
  const std::vector<int32_t> only = {tokenizer.find("<|im_end|>")};
  for (const char* other :
       {"{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}",
        "{{ '<|im_start|>' + r + '<|im_sep|>' + c + '<|im_end|>' }}", "{# <|im_start|> <|im_end|> #}x"}) {
    EXPECT_EQ(end_tokens(tokenizer, other), only) << other;
  }
  EXPECT_EQ(end_tokens(tokenizer, "{{ messages }}"), std::vector<int32_t>{});
}

// gpt-oss: the end of a message is not that of the answer, whose channels are marked by tokens.
TEST(ChatRender, MessagesOfSeveralChannels) {
  const Tokenizer tokenizer = testing::load(testing::read_json("o200k.tokenizer.json"));
  const std::string source =
      "<|start|>system<|message|>Today: {{ strftime_now('%Y-%m-%d') }}<|end|>{% for m in messages %}"
      "{{ '<|start|>' + m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}"
      "{{ '<|message|>' + m.content + '<|end|>' }}{% endfor %}<|start|>assistant";
  EXPECT_EQ(end_tokens(tokenizer, source),
            (std::vector<int32_t>{tokenizer.find("<|return|>"), tokenizer.find("<|call|>")}));
  for (const std::string& each : {source, std::string()}) {
    const std::optional<ThinkingMarks> marks = thinking_marks(tokenizer, each);
    ASSERT_TRUE(marks);
    EXPECT_TRUE(marks->channels);
    EXPECT_FALSE(ends_with_open_mark(tokenizer, *marks,
                                     tokenizer.encode("<|start|>assistant", AddBos::kNo, SpecialTokens::kParse)));
    EXPECT_TRUE(ends_with_open_mark(
        tokenizer, *marks, tokenizer.encode("<|start|>assistant" + marks->open, AddBos::kNo, SpecialTokens::kParse)));
    std::string bytes;
    for (const int32_t id : tokenizer.encode(marks->close, AddBos::kNo, SpecialTokens::kParse))
      bytes += tokenizer.token_bytes(id);
    EXPECT_EQ(bytes, marks->close);
  }
  EXPECT_FALSE(thinking_marks(tokenizer, "{{ messages }}"));
  std::string text;
  for (const TextPart& part :
       render_chat(jinja::Template(source, "harmony"), messages_of("", "Hello <|end|>"), tokenizer, {}))
    text += part.text;
  EXPECT_TRUE(text.ends_with("<|end|><|start|>user<|message|>Hello <|end|><|end|><|start|>assistant")) << text;
}

TEST(ChatRender, ThinksOnlyIfAsked) {
  const Tokenizer tokenizer = tokenizer_of(testing::read_json("chat.json")[0]);
  const jinja::Template chat("{{ enable_thinking }}{{ add_generation_prompt }}{{ tools }}", "test");
  const auto text = [&](const ChatRenderOptions& options) {
    std::string all;
    for (const TextPart& part : render_chat(chat, messages_of("", "x"), tokenizer, options)) all += part.text;
    return all;
  };
  EXPECT_EQ(text({}), "FalseTrueNone");
  EXPECT_EQ(text({.wish = {.thinking = true}, .generation_prompt = false}), "TrueFalseNone");
  const jinja::Template effort("{{ reasoning_effort | default('usual') }}", "test");
  for (const char* const level : {"", "low"}) {
    std::string all;
    for (const TextPart& part : render_chat(effort, messages_of("", "x"), tokenizer, {.wish = {.effort = level}}))
      all += part.text;
    EXPECT_EQ(all, *level == 0 ? "usual" : level);
  }
}

// Gemma's: an assistant's role is "model", a system message comes before the first user's text, and turns alternate.
TEST(ChatRender, RolesOfItsOwn) {
  Json json = testing::read_json("llama2.tokenizer.json");
  const auto add = [&](const char* content, int id) {
    json["added_tokens"].push_back({{"id", id},
                                    {"content", content},
                                    {"single_word", false},
                                    {"lstrip", false},
                                    {"rstrip", false},
                                    {"normalized", false},
                                    {"special", true}});
  };
  add("<start_of_turn>", 2000);
  add("<end_of_turn>", 2001);
  const Tokenizer tokenizer = testing::load(json, "tokenizer.json", {{"bos_token", "<s>"}});
  const std::string source =
      "{{ bos_token }}{% set first = '' %}{% set turns = messages %}"
      "{% if messages[0]['role'] == 'system' %}{% set first = messages[0]['content'] | trim + '\n\n' %}"
      "{% set turns = messages[1:] %}{% endif %}"
      "{% for turn in turns %}"
      "{% if (turn['role'] == 'user') != (loop.index0 % 2 == 0) %}"
      "{{ raise_exception('user and assistant take turns') }}{% endif %}"
      "{{ '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\n' }}"
      "{{ first if loop.first else '' }}{{ turn['content'] | trim }}{{ '<end_of_turn>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}";
  const jinja::Template chat(source, "gemma");
  nlohmann::ordered_json messages = messages_of("Be short.", " Hello. ");
  messages.push_back({{"role", "assistant"}, {"content", "Hi!"}});
  messages.push_back({{"role", "user"}, {"content", "Bye <end_of_turn>"}});
  const auto parts = render_chat(chat, messages, tokenizer, {});
  std::string text;
  for (const TextPart& part : parts) text += part.text;
  EXPECT_EQ(text,
            "<s><start_of_turn>user\nBe short.\n\nHello.<end_of_turn>\n<start_of_turn>model\nHi!<end_of_turn>\n"
            "<start_of_turn>user\nBye <end_of_turn><end_of_turn>\n<start_of_turn>model\n");
  const std::vector<int32_t> ids = tokenizer.encode(parts, AddBos::kNo);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), tokenizer.find("<end_of_turn>")), 3);  // a user's is text
  EXPECT_EQ(end_tokens(tokenizer, source), std::vector<int32_t>{tokenizer.find("<end_of_turn>")});
  messages.erase(2);
  expect_error(ExitCode::kBadInput, "gemma", {"user and assistant take turns"},
               [&] { render_chat(chat, messages, tokenizer, {}); });
}

TEST(ChatRender, RefusesWhatAreNoMessages) {
  const auto refused = [](const std::string& json, const std::string& why) {
    SCOPED_TRACE(json);
    expect_error(ExitCode::kBadInput, "m.json", {why}, [&] { parse_chat_messages(json, "m.json"); });
  };
  refused("[{", "is not valid JSON");
  refused("{}", "is not a list of messages");
  refused("[]", "is not a list of messages");
  refused("[3]", "message 0 is number, not an object");
  refused(R"([{"role": "user", "content": "x"}, {"content": "x"}])", "message 1 needs a string as its 'role'");
  refused(R"([{"role": "<|im_end|>", "content": "x"}])", "has the role '<|im_end|>', not one of system,");
  std::string deep(200, '[');
  deep += std::string(200, ']');
  refused(R"([{"role": "user", "content": )" + deep + "}]", "nested deeper than 64 levels");
}

}  // namespace
}  // namespace headrace
