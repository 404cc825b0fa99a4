#include "runtime/text/conversation.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/text/chat_render.h"
#include "runtime/text/jinja/lexer.h"

namespace headrace {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Words that no template prints by itself.
constexpr const char *kSystemWord = "zqsystem", *kToolWord = "zqtool", *kCallWord = "zqcall", *kValueWord = "zqvalue",
                     *kAnswerWord = "zqanswer";

// In which form a template gets the messages.
struct MessageForm {
  bool joined = false;          // the system's messages are one, the first
  bool text_arguments = false;  // a call's arguments are JSON as text, else an object
  bool no_content = false;      // a call without text has no content, else an empty one
  bool calls_apart = false;     // each call is a message of its own, before its answer
};

bool is_system(const OrderedJson& message) { return message["role"] == "system" || message["role"] == "developer"; }

// JSON text as the object that it is; what is none stays text.
OrderedJson object_of(const OrderedJson& arguments) {
  const std::string& text = arguments.get_ref<const std::string&>();
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) return OrderedJson::object();
  try {
    OrderedJson parsed = parse_ordered_json(text, "arguments");
    return parsed.is_object() ? parsed : arguments;
  } catch (const Error&) {
    return arguments;
  }
}

OrderedJson shaped_message(OrderedJson message, const MessageForm& form) {
  const bool calls = message.contains("tool_calls");
  if (message["content"].is_null() && !(calls && form.no_content)) message["content"] = "";
  if (!calls || form.text_arguments) return message;
  for (OrderedJson& call : message["tool_calls"]) {
    OrderedJson& arguments = call["function"]["arguments"];
    arguments = object_of(arguments);
  }
  return message;
}

bool has_several_calls(const OrderedJson& message) {
  return message.contains("tool_calls") && message["tool_calls"].size() > 1;
}

// Where a message has several calls, each becomes a message, before the tool's message that answers it.
OrderedJson with_calls_apart(const OrderedJson& messages) {
  OrderedJson list = OrderedJson::array();
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    if (!has_several_calls(message)) {
      list.push_back(message);
      continue;
    }
    size_t end = i + 1;  // of the answers
    while (end < messages.size() && messages[end]["role"] == "tool") ++end;
    std::vector<bool> placed(end - i);
    OrderedJson one = OrderedJson::object();
    for (const auto& member : message.items()) {
      if (member.key() != "tool_calls") one[member.key()] = member.value();
    }
    for (const OrderedJson& call : message["tool_calls"]) {
      one["tool_calls"] = OrderedJson::array({call});
      list.push_back(one);
      one["content"] = nullptr;  // of those behind the first
      for (const char* const key : {"reasoning_content", "thinking"}) one.erase(key);
      for (size_t j = i + 1; j < end; ++j) {
        if (placed[j - i] || messages[j].value("tool_call_id", "") != call["id"]) continue;
        list.push_back(messages[j]);
        placed[j - i] = true;
      }
    }
    for (size_t j = i + 1; j < end; ++j) {
      if (!placed[j - i]) list.push_back(messages[j]);
    }
    i = end - 1;
  }
  return list;
}

OrderedJson shaped(const OrderedJson& given, const MessageForm& form) {
  const OrderedJson apart = form.calls_apart ? with_calls_apart(given) : OrderedJson();
  const OrderedJson& messages = form.calls_apart ? apart : given;
  OrderedJson list = OrderedJson::array();
  std::optional<size_t> system;  // its place in the list
  for (const OrderedJson& message : messages) {
    if (!is_system(message) || !form.joined || !system) {
      list.push_back(shaped_message(message, form));
    } else {
      std::string text = list[*system]["content"].get<std::string>();
      if (!text.empty()) text += "\n\n";
      list[*system]["content"] = text + message["content"].get<std::string>();
    }
    if (is_system(message) && !system) system = list.size() - 1;
  }
  if (form.joined && system) {
    const auto first = list.begin(), found = first + static_cast<std::ptrdiff_t>(*system);
    std::rotate(first, found, found + 1);
  }
  return list;
}

// The same roles with a word for each text that must not be lost.
OrderedJson sample_of(const OrderedJson& messages) {
  OrderedJson list = OrderedJson::array();
  size_t systems = 0, calls = 0, answers = 0;
  for (const OrderedJson& message : messages) {
    OrderedJson short_one = message;
    if (!message["content"].is_null()) short_one["content"] = "x";
    if (is_system(message)) short_one["content"] = str(kSystemWord, systems++, "z");
    if (message["role"] == "tool") short_one["content"] = str(kAnswerWord, answers++, "z");
    if (message.contains("tool_calls")) {
      for (OrderedJson& call : short_one["tool_calls"]) {
        call["function"]["name"] = str(kCallWord, calls, "z");
        call["function"]["arguments"] = OrderedJson{{"a", str(kValueWord, calls++, "z")}}.dump();
      }
    }
    list.push_back(std::move(short_one));
  }
  return list;
}

OrderedJson sample_tools() {
  const OrderedJson parameters = {
      {"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"description", "x"}}}}}, {"required", {"a"}}};
  return OrderedJson::array(
      {{{"type", "function"}, {"function", {{"name", kToolWord}, {"description", "x"}, {"parameters", parameters}}}}});
}

// Of each word as many as the sample has: 0z, 1z, ...
bool has_all(const std::string& text, const char* word, const std::string& sample) {
  for (size_t i = 0;; ++i) {
    const std::string one = str(word, i, "z");
    if (sample.find(one) == std::string::npos) return true;
    if (text.find(one) == std::string::npos) return false;
  }
}

class Renderer {
 public:
  Renderer(const Tokenizer& tokenizer, const jinja::Template& chat, const ThinkingWish& wish)
      : tokenizer_(tokenizer), chat_(chat), options_{.wish = wish} {}

  std::vector<TextPart> parts(const OrderedJson& messages, const OrderedJson& tools) const {
    ChatRenderOptions options = options_;
    if (!tools.is_null()) options.tools = &tools;
    return render_chat(chat_, messages, tokenizer_, options);
  }

  // The first that loses nothing. None: the template refuses them all.
  std::optional<MessageForm> form_of(const OrderedJson& messages, bool tools) const {
    const OrderedJson sample = sample_of(messages), of_tools = tools ? sample_tools() : OrderedJson();
    const std::string words = sample.dump();
    std::string lost;
    const bool several = std::any_of(messages.begin(), messages.end(), has_several_calls);
    for (unsigned forms = 0; forms < (several ? 16 : 8); ++forms) {
      const MessageForm form = {.joined = (forms & 1) != 0,
                                .text_arguments = (forms & 2) != 0,
                                .no_content = (forms & 4) != 0,
                                .calls_apart = (forms & 8) != 0};
      const std::optional<std::string> text = text_of(shaped(sample, form), of_tools);
      if (!text) continue;
      const std::string missing = loss(*text, words, tools, form.joined);
      if (missing.empty()) return form;
      if (lost.empty()) lost = missing;
    }
    if (!lost.empty()) {
      throw_error(ExitCode::kBadInput, lost, "would be left out by the model's chat template",
                  "Give a template that supports them with --chat-template-file");
    }
    return std::nullopt;
  }

 private:
  std::optional<std::string> text_of(const OrderedJson& messages, const OrderedJson& tools) const {
    try {
      std::string text;
      for (const TextPart& part : parts(messages, tools)) text += part.text;
      return text;
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  static std::string loss(const std::string& text, const std::string& sample, bool tools, bool joined) {
    if (tools && text.find(kToolWord) == std::string::npos) return "tools";
    // A template may print a single one, at its place, in some turns only, as Mistral's does.
    const bool several = sample.find(str(kSystemWord, 1, "z")) != std::string::npos;
    if ((several || !joined) && !has_all(text, kSystemWord, sample)) return "messages: system messages";
    if (!has_all(text, kAnswerWord, sample)) return "messages: what tools answered";
    return has_all(text, kCallWord, sample) && has_all(text, kValueWord, sample) ? "" : "messages: calls of tools";
  }

  const Tokenizer& tokenizer_;
  const jinja::Template& chat_;
  const ChatRenderOptions options_;
};

// At most one message of the system, the first, then questions and answers: what every template takes.
bool is_plain(const OrderedJson& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const OrderedJson& message = messages[i];
    if ((is_system(message) && i > 0) || message["role"] == "tool" || message.contains("tool_calls")) return false;
  }
  return true;
}

// To "thinking". A message with calls has it or a content, so that the one takes up the other.
void rename_thinking(OrderedJson* message) {
  const auto found = message->find("reasoning_content");
  if (found == message->end()) return;
  std::string thinking = found->get<std::string>();
  message->erase(found);
  OrderedJson& content = (*message)["content"];
  if (message->contains("tool_calls") && content.is_string() && !content.get_ref<const std::string&>().empty()) {
    thinking += "\n\n" + content.get<std::string>();
    content = nullptr;
  }
  (*message)["thinking"] = std::move(thinking);
}

}  // namespace

TemplateTraits template_traits(std::string_view source) {
  TemplateTraits traits;
  bool calls = false, functions = false, objects = false, thinking = false, reasoning = false;
  bool of_member = false;  // the token follows a point
  for (const jinja::Token& token : jinja::tokens_of(source, "chat template")) {
    const bool member = std::exchange(of_member, token.kind == jinja::TokenKind::kOperator && token.text == ".");
    if (token.kind == jinja::TokenKind::kName) {
      traits.effort = traits.effort || token.text == "reasoning_effort";
      thinking = thinking || (member && token.text == "thinking");
      reasoning = reasoning || token.text == "reasoning_content";
    }
    if (token.kind != jinja::TokenKind::kText && token.kind != jinja::TokenKind::kString) continue;
    const std::string_view text = token.text;
    if (token.kind == jinja::TokenKind::kString && text == "developer") traits.developer = true;
    calls = calls || text.find("<tool_call>") != std::string_view::npos;
    functions = functions || text.find("<function=") != std::string_view::npos;
    objects = objects || text.find("\"arguments\"") != std::string_view::npos;
  }
  traits.thinking_member = thinking && !reasoning;
  if (calls && functions) traits.calls = CallForm::kXml;
  if (calls && !functions && objects) traits.calls = CallForm::kJson;
  return traits;
}

std::vector<TextPart> render_conversation(const Tokenizer& tokenizer, const jinja::Template& chat,
                                          const TemplateTraits& traits, const Conversation& conversation,
                                          const ThinkingWish& wish) {
  OrderedJson messages = conversation.messages;
  for (OrderedJson& message : messages) {
    if (!traits.developer && message["role"] == "developer") message["role"] = "system";
    if (traits.thinking_member) rename_thinking(&message);
  }
  const Renderer renderer(tokenizer, chat, wish);
  const bool tools = !conversation.tools.is_null();
  MessageForm form;
  if (tools || !is_plain(messages)) form = renderer.form_of(messages, tools).value_or(MessageForm{.joined = true});
  return renderer.parts(shaped(messages, form), conversation.tools);
}

}  // namespace headrace
