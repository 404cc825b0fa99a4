// A conversation as a prompt, by interpreting a Jinja template. Text from messages never becomes a special token,
// whatever the template does with it. Pure functions.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/chat.h"
#include "runtime/text/jinja/template.h"
#include "runtime/text/tokenizer.h"

namespace headrace {

struct ChatRenderOptions {
  ThinkingWish wish{};
  bool generation_prompt = true;                  // ends with the start of the assistant's turn
  const nlohmann::ordered_json* tools = nullptr;  // a list of them; null: none
};

// A list of {"role", "content"} objects; other members reach the template as they are. `source` names it in errors.
// Throws Error(kBadInput) if it is no JSON, no such list, empty, or has an unknown role: a role is the template's text
// (templates make markers of it), so it must be one of a few words.
nlohmann::ordered_json parse_chat_messages(std::string_view json, const std::string& source);

// The prompt in parts: messages' text, and all other text, whose markers become tokens. The template has the variables
// that transformers sets: messages, tools, documents (none), add_generation_prompt, enable_thinking, reasoning_effort
// if it is asked for, and the
// tokenizer's special names. `messages` are those of parse_chat_messages. Throws Error(kBadInput) as jinja::Template
// does.
std::vector<TextPart> render_chat(const jinja::Template& chat, const nlohmann::ordered_json& messages,
                                  const Tokenizer& tokenizer, const ChatRenderOptions& options);

// The same of a conversation that ends with a user's turn, followed by the generation prompt.
std::vector<TextPart> render_chat(const Tokenizer& tokenizer, const jinja::Template& chat, const ChatMessages& messages,
                                  const ThinkingWish& wish);
// Token ids of a conversation that ends with a user's turn, followed by the generation prompt.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const jinja::Template& chat, const ChatMessages& messages,
                                 const ThinkingWish& wish);
// Tokens that end the assistant's turn, in addition to the tokenizer's end token: those of ChatML,
// Llama or Mistral if the source prints their markers, else the known ends of turns that it has.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, std::string_view source);

}  // namespace headrace
