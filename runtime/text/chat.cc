#include "runtime/text/chat.h"

#include <algorithm>

#include "cache/base.h"
#include "runtime/base/utf8.h"

namespace headrace {

namespace {

// The characters that Python's str.strip() removes.
bool is_blank(char32_t c) {
  return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

enum class Trim { kEnd, kBoth };

std::string trimmed(std::string_view text, Trim trim) {
  std::string valid;
  append_valid_utf8(text, &valid);
  size_t begin = trim == Trim::kBoth ? std::string::npos : 0, end = 0;
  for (size_t at = 0; at < valid.size();) {
    const Utf8Unit unit = next_utf8(std::string_view(valid).substr(at));
    if (!is_blank(unit.code_point)) {
      begin = std::min(begin, at);
      end = at + unit.length;
    }
    at += unit.length;
  }
  return end == 0 ? "" : valid.substr(begin, end - begin);
}

// Collects a prompt's parts: ours, whose markers become tokens, and the user's, which stay text.
class Prompt {
 public:
  explicit Prompt(const ChatTemplate& chat) : chat_(chat) {}
  Prompt& ours(std::string text) {
    parts_.push_back({std::move(text), SpecialTokens::kParse});
    return *this;
  }
  Prompt& theirs(const std::string& text) {
    parts_.push_back({chat_.trims ? trimmed(text, Trim::kBoth) : text, SpecialTokens::kAsText});
    return *this;
  }
  const std::vector<TextPart>& parts() const { return parts_; }

 private:
  const ChatTemplate& chat_;
  std::vector<TextPart> parts_;
};

std::string bos_text(const Tokenizer& tokenizer) { return tokenizer.token_name(tokenizer.bos()); }

void require_tokens(const Tokenizer& tokenizer, std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (tokenizer.find(name) < 0)
      throw_error(ExitCode::kBadInput, "chat template", str("the model's tokenizer has no token '", name, "'"),
                  "choose another --chat-template, or --no-chat-template");
}

void render_chatml(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatMessages& messages, Prompt* prompt) {
  require_tokens(tokenizer, {"<|im_start|>", "<|im_end|>"});
  if (chat.begins_with_bos) prompt->ours(bos_text(tokenizer));
  if (!messages.system.empty())
    prompt->ours("<|im_start|>system\n").theirs(messages.system).ours("<|im_end|>\n");
  else if (!chat.default_system.empty())
    prompt->ours("<|im_start|>system\n" + chat.default_system + "<|im_end|>\n");
  prompt->ours("<|im_start|>user\n").theirs(messages.user).ours("<|im_end|>\n");
  prompt->ours("<|im_start|>assistant\n" + chat.answer_prefix);
}

void render_llama3(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatMessages& messages, Prompt* prompt) {
  require_tokens(tokenizer, {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  const auto header = [](const char* role) { return str("<|start_header_id|>", role, "<|end_header_id|>\n\n"); };
  const std::string& system = messages.system.empty() ? chat.default_system : messages.system;
  prompt->ours(bos_text(tokenizer));
  if (!system.empty() || !chat.system_preamble.empty())
    prompt->ours(header("system") + chat.system_preamble).theirs(system).ours("<|eot_id|>");
  prompt->ours(header("user")).theirs(messages.user).ours("<|eot_id|>" + header("assistant"));
}

// The reference trims system block and message as one string, and so the block's own line breaks if nothing follows.
void render_llama2(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatMessages& messages, Prompt* prompt) {
  const std::string& system = messages.system.empty() ? chat.default_system : messages.system;
  const std::string user = trimmed(messages.user, system.empty() ? Trim::kBoth : Trim::kEnd);
  prompt->ours(bos_text(tokenizer) + "[INST] ");
  if (!system.empty()) prompt->ours("<<SYS>>\n").theirs(system).ours(user.empty() ? "\n<</SYS>>" : "\n<</SYS>>\n\n");
  prompt->theirs(user).ours(" [/INST]");
}

// If "[INST]" is a token (v3), no space precedes "[/INST]"; if it is text (v1), one does.
void render_mistral(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatMessages& messages,
                    Prompt* prompt) {
  const bool is_token = tokenizer.find("[/INST]") >= 0;
  const std::string& system = messages.system.empty() ? chat.default_system : messages.system;
  prompt->ours(bos_text(tokenizer) + (chat.open.empty() ? "[INST] " : chat.open));
  if (!system.empty()) prompt->theirs(system).ours("\n\n");
  prompt->theirs(messages.user);
  prompt->ours(!chat.close.empty() ? chat.close : is_token ? "[/INST]" : " [/INST]");
}

}  // namespace

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const ChatTemplate& chat, const ChatMessages& messages) {
  if (!messages.earlier.empty()) {
    throw_error(ExitCode::kBadInput, "messages", "hold a conversation, and --chat-template NAME takes one user message",
                "Use the model's own template, or --chat-template-file");
  }
  Prompt prompt(chat);
  switch (chat.family) {
    case ChatFamily::kNone:  // no template: the user's text, as a plain prompt
      return tokenizer.encode({TextPart{messages.user, SpecialTokens::kAsText}}, AddBos::kYes);
    case ChatFamily::kChatMl:
    case ChatFamily::kQwen3:
      render_chatml(tokenizer, chat, messages, &prompt);
      break;
    case ChatFamily::kLlama3:
      render_llama3(tokenizer, chat, messages, &prompt);
      break;
    case ChatFamily::kLlama2:
      render_llama2(tokenizer, chat, messages, &prompt);
      break;
    case ChatFamily::kMistral:
      render_mistral(tokenizer, chat, messages, &prompt);
      break;
  }
  return tokenizer.encode(prompt.parts(), AddBos::kNo);
}

std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, const ChatTemplate& chat) {
  std::vector<const char*> names;
  switch (chat.family) {
    case ChatFamily::kNone:
      break;
    case ChatFamily::kChatMl:
    case ChatFamily::kQwen3:
      names = {"<|im_end|>", "<|endoftext|>"};
      break;
    case ChatFamily::kLlama3:
      names = {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"};
      break;
    case ChatFamily::kLlama2:
    case ChatFamily::kMistral:
      names = {"</s>"};
      break;
  }
  std::vector<int32_t> ids;
  for (const char* name : names)
    if (tokenizer.find(name) >= 0) ids.push_back(tokenizer.find(name));
  return ids;
}

}  // namespace headrace
