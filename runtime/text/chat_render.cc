#include "runtime/text/chat_render.h"

#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/base/utf8.h"
#include "runtime/text/jinja/lexer.h"

namespace headrace {

namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

// Not gpt-oss's "<|end|>", which ends a message of several in a turn: Phi's end token is in its generation_config.json.
constexpr std::array<std::string_view, 8> kTurnEnds = {
    "<|im_end|>", "<|eot_id|>", "<|eot|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<|END_OF_TURN_TOKEN|>",
    "</s>"};

[[noreturn]] void refuse(const std::string& source, const std::string& what) {
  throw_error(ExitCode::kBadInput, source, what, R"(messages are a JSON list: [{"role": "user", "content": "..."}])");
}

void check_message(const OrderedJson& message, size_t index, const std::string& source) {
  const std::string where = str("message ", index);
  if (!message.is_object()) refuse(source, str(where, " is ", message.type_name(), ", not an object"));
  const auto role = message.find("role");
  if (role == message.end() || !role->is_string()) refuse(source, str(where, " needs a string as its 'role'"));
  const std::string& name = role->get_ref<const std::string&>();
  if (std::find(kRoles.begin(), kRoles.end(), name) != kRoles.end()) return;
  std::string names;
  for (std::string_view known : kRoles) names += str(names.empty() ? "" : ", ", known);
  refuse(source, str(where, " has the role '", name, "', not one of ", names));
}

// All text is the messages', but a role, which is one of a few words.
jinja::Value message_values(const OrderedJson& messages) {
  jinja::List out;
  for (const OrderedJson& message : messages) {
    jinja::Dict dict;
    for (const auto& [key, value] : message.items()) {
      if (value.is_null()) continue;  // as in transformers
      const auto origin = key == "role" ? jinja::Origin::kTemplate : jinja::Origin::kMessage;
      dict.entries.emplace_back(jinja::from_json(key, jinja::Origin::kMessage, "messages"),
                                jinja::from_json(value, origin, "messages"));
    }
    out.items.push_back(std::move(dict));
  }
  return out;
}

// Markers count where the template can print them, not in its comments.
std::vector<std::string_view> turn_ends(std::string_view source) {
  std::string printed;
  for (const jinja::Token& token : jinja::tokens_of(source, "chat template")) {
    if (token.kind == jinja::TokenKind::kText || token.kind == jinja::TokenKind::kString) printed += token.text + '\n';
  }
  const auto prints = [&](std::string_view text) { return printed.find(text) != std::string::npos; };
  if (prints("<|im_start|>") && prints("<|im_end|>") && !prints("<|im_sep|>")) return {"<|im_end|>", "<|endoftext|>"};
  if (prints("<|start_header_id|>") && prints("<|eot_id|>")) return {"<|eot_id|>", "<|eom_id|>", "<|end_of_text|>"};
  if (prints("<|start|>") && prints("<|channel|>")) return {"<|return|>", "<|call|>"};
  if (prints("<|turn>") && prints("<turn|>")) return {"<turn|>", "<|tool_response>", "<eos>"};
  if (prints("[INST]") && prints("[/INST]") && !prints("[SYSTEM_PROMPT]")) return {"</s>"};
  std::vector<std::string_view> found;
  for (std::string_view name : kTurnEnds)
    if (source.find(name) != std::string_view::npos) found.push_back(name);
  return found;
}

}  // namespace

OrderedJson parse_chat_messages(std::string_view json, const std::string& source) {
  const OrderedJson messages = parse_ordered_json(json, source);
  if (!messages.is_array() || messages.empty()) refuse(source, "is not a list of messages");
  for (size_t i = 0; i < messages.size(); ++i) check_message(messages[i], i, source);
  jinja::from_json(messages, jinja::Origin::kMessage, source);  // refuses what nests too deep
  return messages;
}

std::vector<TextPart> render_chat(const jinja::Template& chat, const OrderedJson& messages, const Tokenizer& tokenizer,
                                  const ChatRenderOptions& options) {
  jinja::Variables variables;
  for (const auto& [name, token] : tokenizer.special_names()) variables.emplace_back(name, jinja::Value::text(token));
  variables.emplace_back("messages", message_values(messages));
  variables.emplace_back("tools", options.tools == nullptr
                                      ? jinja::Value(jinja::None())
                                      : jinja::from_json(*options.tools, jinja::Origin::kMessage, "tools"));
  variables.emplace_back("documents", jinja::None());
  variables.emplace_back("add_generation_prompt", options.generation_prompt);
  variables.emplace_back("enable_thinking", options.wish.thinking);
  if (!options.wish.effort.empty()) {
    variables.emplace_back("reasoning_effort", jinja::Value::text(std::string(options.wish.effort)));
  }
  const jinja::Text text = chat.render(variables);
  std::vector<TextPart> parts;
  for (const jinja::Text::Run& run : text.runs()) {
    const bool is_message = run.origin == jinja::Origin::kMessage;
    parts.push_back({std::string(run.bytes), is_message ? SpecialTokens::kAsText : SpecialTokens::kParse});
  }
  return parts;
}

std::vector<TextPart> render_chat(const Tokenizer& tokenizer, const jinja::Template& chat, const ChatMessages& messages,
                                  const ThinkingWish& wish) {
  OrderedJson list = OrderedJson::array();
  const auto add = [&](const char* role, const std::string& content) {
    std::string valid;
    append_valid_utf8(content, &valid);
    list.push_back({{"role", role}, {"content", std::move(valid)}});
  };
  if (!messages.system.empty()) add("system", messages.system);
  for (const ChatTurn& turn : messages.earlier) add(turn.assistant ? "assistant" : "user", turn.content);
  add("user", messages.user);
  return render_chat(chat, list, tokenizer, {.wish = wish});
}

std::vector<int32_t> encode_chat(const Tokenizer& tokenizer, const jinja::Template& chat, const ChatMessages& messages,
                                 const ThinkingWish& wish) {
  return tokenizer.encode(render_chat(tokenizer, chat, messages, wish), AddBos::kNo);
}

std::vector<int32_t> end_tokens(const Tokenizer& tokenizer, std::string_view source) {
  std::vector<int32_t> ids;
  for (std::string_view name : turn_ends(source))
    if (tokenizer.find(name) >= 0) ids.push_back(tokenizer.find(name));
  return ids;
}

}  // namespace headrace
