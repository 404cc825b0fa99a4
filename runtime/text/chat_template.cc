// Recognises the family of a model's chat template, and how it differs within the family.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/chat.h"
#include "runtime/text/jinja_strings.h"

namespace headrace {

namespace {

constexpr std::string_view kSystemOpen = "<|im_start|>system\n", kTurnEnd = "<|im_end|>";
// The default of transformers if the template asks for a date.
constexpr const char* kLlama31Preamble = "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n";
constexpr const char* kEmptyThought = "<think>\n\n</think>\n\n";

std::string choices() {
  std::string text = "give --chat-template one of:";
  for (const std::string& name : chat_template_names()) text += str(" ", name);
  return text + "; or --no-chat-template";
}

ChatTemplate of_family(ChatFamily family) {
  ChatTemplate chat;
  chat.family = family;
  chat.trims = family == ChatFamily::kLlama3;
  if (family == ChatFamily::kQwen3) chat.answer_prefix = kEmptyThought;
  return chat;
}

bool has(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

ChatFamily family_of(std::string_view jinja) {
  if (has(jinja, "<|im_start|>") && has(jinja, "<|im_end|>") && !has(jinja, "<|im_sep|>"))
    return has(jinja, "enable_thinking") ? ChatFamily::kQwen3 : ChatFamily::kChatMl;
  if (has(jinja, "<|start_header_id|>") && has(jinja, "<|eot_id|>")) return ChatFamily::kLlama3;
  if (!has(jinja, "[INST]") || !has(jinja, "[/INST]") || has(jinja, "[SYSTEM_PROMPT]")) return ChatFamily::kNone;
  return has(jinja, "<<SYS>>") ? ChatFamily::kLlama2 : ChatFamily::kMistral;
}

// ChatML templates with a default print it as one string: "<|im_start|>system\n…<|im_end|>\n".
std::string default_system(const std::vector<std::string>& strings) {
  for (const std::string& text : strings) {
    const size_t open = text.find(kSystemOpen);
    if (open == std::string::npos) continue;
    const size_t begin = open + kSystemOpen.size(), end = text.find(kTurnEnd, begin);
    if (end != std::string::npos) return text.substr(begin, end - begin);
  }
  return {};
}

std::string without_spaces(std::string_view text) {
  std::string out(text);
  out.erase(std::remove(out.begin(), out.end(), ' '), out.end());
  return out;
}

bool trims_messages(std::string_view jinja) {
  const std::string text = without_spaces(jinja);
  for (const char* form : {"message['content']|trim", "message[\"content\"]|trim", "message.content|trim",
                           "message['content'].strip()", "message[\"content\"].strip()", "message.content.strip()"})
    if (has(text, form)) return true;
  return false;
}

void read_chatml(std::string_view jinja, const std::vector<std::string>& strings, ChatTemplate* chat) {
  chat->default_system = default_system(strings);
  chat->begins_with_bos = has(jinja, "bos_token");
  chat->trims = trims_messages(jinja);
  for (const std::string& text : strings)
    if (text == "<|im_start|>assistant\n<think>\n") chat->answer_prefix = "<think>\n";  // always thinks
}

void read_mistral(const std::vector<std::string>& strings, ChatTemplate* chat) {
  for (const std::string& text : strings) {
    const std::string word = without_spaces(text);
    if (word == "[INST]") chat->open = text;
    if (word == "[/INST]") chat->close = text;
  }
}

}  // namespace

const std::vector<std::string>& chat_template_names() {
  static const std::vector<std::string> names = {"chatml", "llama2", "llama3", "mistral", "qwen3"};
  return names;
}

ChatTemplate chat_template_by_name(std::string_view name) {
  constexpr ChatFamily kFamilies[] = {ChatFamily::kChatMl, ChatFamily::kLlama2, ChatFamily::kLlama3,
                                      ChatFamily::kMistral, ChatFamily::kQwen3};
  const auto& names = chat_template_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end())
    throw_error(ExitCode::kUsage, "--chat-template", str("'", name, "' is not a chat template"), choices());
  return of_family(kFamilies[found - names.begin()]);
}

std::optional<ChatTemplate> find_chat_template(std::string_view jinja) {
  const std::vector<std::string> strings = jinja_strings(jinja);
  std::string printed;  // markers count in printed text, not in comments
  for (const std::string& text : strings) printed += text + '\n';
  ChatTemplate chat = of_family(family_of(has(jinja, "enable_thinking") ? printed + "enable_thinking" : printed));
  if (chat.family == ChatFamily::kNone) return std::nullopt;
  if (chat.family == ChatFamily::kChatMl) read_chatml(jinja, strings, &chat);
  if (chat.family == ChatFamily::kQwen3) chat.default_system = default_system(strings);
  if (chat.family == ChatFamily::kLlama3 && has(printed, "Cutting Knowledge Date: December 2023"))
    chat.system_preamble = kLlama31Preamble;
  if (chat.family == ChatFamily::kMistral) read_mistral(strings, &chat);
  return chat;
}

ChatTemplate recognise_chat_template(std::string_view jinja, const std::string& source) {
  std::optional<ChatTemplate> chat = find_chat_template(jinja);
  if (chat) return *chat;
  const size_t end = std::min(jinja.find('\n'), size_t{60});
  throw_error(ExitCode::kBadInput, source, str("its chat template is unknown: '", jinja.substr(0, end), "…'"),
              choices());
}

}  // namespace headrace
