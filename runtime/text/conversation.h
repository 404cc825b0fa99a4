// A conversation in OpenAI's form, with tools, as a prompt by a model's chat template. Templates differ in what they
// take: a short conversation of the same roles is rendered first, and the form is chosen in which nothing of it is
// lost. Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "runtime/text/chat.h"
#include "runtime/text/jinja/template.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

struct Conversation {
  // Objects with "role" and "content", a text or null. An assistant's may have "reasoning_content" and "tool_calls", of
  // which each function has its "arguments" as text; a tool's has "tool_call_id".
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools{};  // a list of {"type": "function", "function"}; null: none
  bool no_thinking = false;        // it asks for none, whatever --thinking says
  std::string effort{};            // reasoning_effort: "low", "medium" or "high"; empty: as the program was told to
};

// How a model that knows the template writes a call of a tool.
enum class CallForm {
  kNone,  // in neither of the two forms that are parsed
  kJson,  // <tool_call>{"name", "arguments"}</tool_call>: Hermes, Qwen2.5, Qwen3
  kXml,   // <tool_call><function=NAME><parameter=NAME>...</tool_call>: Qwen3-Coder, Qwen3.5
};

// What the source of a template shows of it.
struct TemplateTraits {
  bool developer = false;  // it has a role of this name; else such messages are the system's
  CallForm calls = CallForm::kNone;
  bool effort = false;  // it reads reasoning_effort
  // It reads an assistant's thinking beside calls as "thinking" (gpt-oss), not as "reasoning_content".
  bool thinking_member = false;
};
TemplateTraits template_traits(std::string_view source);

// The prompt in parts, with the start of the answer. Several system messages are joined in the first one if the
// template does not print each of them; several calls of one message become messages of their own, each before its
// answer, if it prints one alone. Throws Error(kBadInput) as jinja::Template does, and by name if it leaves out tools
// or their calls.
std::vector<TextPart> render_conversation(const Tokenizer& tokenizer, const jinja::Template& chat,
                                          const TemplateTraits& traits, const Conversation& conversation,
                                          const ThinkingWish& wish);

}  // namespace headrace
