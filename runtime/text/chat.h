// Chat templates by family, for --chat-template NAME, and the family that a Jinja template is of. The template's own
// markers become special tokens; the user's text never does. chat_render.h interprets templates.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/text/tokenizer.h"

namespace headrace {

enum class ChatFamily { kNone, kChatMl, kLlama2, kLlama3, kMistral, kQwen3 };

struct ChatTemplate {
  ChatFamily family = ChatFamily::kNone;
  std::string default_system;  // used when no system message is given; empty: none
  // Differences within a family; recognise_chat_template() reads them from the model's template.
  bool begins_with_bos = false;  // ChatML: most do not. The other families always do
  bool trims = false;            // drops white space around a message
  std::string system_preamble;   // Llama 3.1: the dates before the system message, present even without one
  std::string answer_prefix;     // the start of the assistant's turn: Qwen3's empty "<think>" block
  std::string open, close;       // Mistral: "[INST] " and " [/INST]", with this version's spaces; empty: by tokenizer
};

const std::vector<std::string>& chat_template_names();  // "chatml", "llama2", "llama3", "mistral", "qwen3"
// A family by name (--chat-template NAME). Throws Error(kUsage) that lists the names.
ChatTemplate chat_template_by_name(std::string_view name);
// The family of a model's Jinja source, with its default system message; none if it is unknown.
std::optional<ChatTemplate> find_chat_template(std::string_view jinja);
// The same; throws Error(kBadInput) whose hint lists the names.
ChatTemplate recognise_chat_template(std::string_view jinja, const std::string& source);

struct ChatTurn {
  bool assistant = false;  // else the user's
  std::string content;
};

struct ChatMessages {
  std::string system;  // empty: the template's default
  std::string user;
  std::vector<ChatTurn> earlier{};  // before `user`, oldest first
};

// Token ids of one user turn followed by the generation prompt, as the family's reference renders it. Throws
// Error(kBadInput) if there are earlier turns: a family has none.
std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatMessages& messages);
// Tokens that end the assistant's turn in this family, in addition to the tokenizer's end token.
std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat);

}  // namespace headrace
