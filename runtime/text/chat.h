// Messages of a chat, and the built-in templates of --chat-template NAME. chat_render.h interprets templates.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace headrace {

// How a model is asked to think, as its template has it.
struct ThinkingWish {
  bool thinking = false;         // enable_thinking
  std::string_view effort = {};  // reasoning_effort; empty: the template's own
};

struct ChatTurn {
  bool assistant = false;  // else the user's
  std::string content;
};

struct ChatMessages {
  std::string system;  // empty: the template's default
  std::string user;
  std::vector<ChatTurn> earlier{};  // before `user`, oldest first
  bool no_thinking = false;         // they ask for none, whatever --thinking says
};

// The Jinja source of a built-in template: "chatml", "llama2", "llama3", "mistral" or "qwen3". Throws Error(kUsage)
// that lists the names, and Error(kBadInput) if the tokenizer lacks one of the template's markers.
std::string chat_template_by_name(std::string_view name, const Tokenizer& tokenizer);

}  // namespace headrace
