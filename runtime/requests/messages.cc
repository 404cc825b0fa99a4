#include "runtime/requests/messages.h"

#include <algorithm>
#include <map>

#include "cache/base.h"
#include "runtime/requests/fields.h"
#include "runtime/requests/file_part.h"

namespace headrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kMessages = "messages";

std::string member_text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// {"id", "type": "function", "function": {"name", "arguments"}}; the arguments are JSON as text, or an object.
ordered_json tool_calls_of(const JsonFields& body, size_t index, const json& calls) {
  if (!calls.is_array()) refuse_item(body, kMessages, index, "has tool_calls that are not a list");
  if (calls.size() > kMaxMessageCalls)
    refuse_item(body, kMessages, index, str("has ", calls.size(), " tool_calls: at most ", kMaxMessageCalls));
  ordered_json list = ordered_json::array();
  for (const json& call : calls) {
    const json function = call.is_object() ? call.value("function", json()) : json();
    const std::string name = function.is_object() ? member_text(function, "name") : "";
    if (name.empty()) refuse_item(body, kMessages, index, "has a tool call without a function's name");
    const json arguments = function.value("arguments", json());
    if (!arguments.is_null() && !arguments.is_string() && !arguments.is_object()) {
      refuse_item(body, kMessages, index, "has a tool call whose arguments are neither a string nor an object");
    }
    const std::string text = arguments.is_string() ? arguments.get<std::string>()
                             : arguments.is_null() ? "{}"
                                                   : arguments.dump();
    list.push_back(call_message(member_text(call, "id"), name, text));
  }
  return list;
}

ordered_json message_of(const JsonFields& body, size_t index, const json& message, RequestFiles* files) {
  if (!message.is_object()) body.refuse(kMessages, "has a message that is not an object");
  const json role = message.value("role", json());
  if (role != "system" && role != "developer" && role != "user" && role != "assistant" && role != "tool") {
    refuse_item(body, kMessages, index,
                "has the role " + shown(role) + ": only system, developer, user, assistant and tool are supported");
  }
  check_message_fields(body, message);
  ordered_json out = {{"role", role}};
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && !calls->is_null() && !calls->empty();
  if (has_calls && role != "assistant")
    refuse_item(body, kMessages, index, "has tool_calls, which only an assistant message may have");
  const json content = message.value("content", json());
  if (content.is_null() && !has_calls) body.refuse(kMessages, "has a message without content");
  if (content.is_null()) {
    out["content"] = nullptr;
  } else {
    out["content"] = text_of_content(body, kMessages, content, {"text", "file"}, files);
  }
  if (has_calls) out["tool_calls"] = tool_calls_of(body, index, *calls);
  for (const char* const key : {"name", "tool_call_id", "reasoning_content"}) {
    std::string text = member_text(message, key);
    if (!text.empty()) out[key] = std::move(text);
  }
  return out;
}

bool is_file(const json& part) {
  const json type = part.is_object() ? part.value("type", json()) : json();
  return type == "file" || type == "input_file";
}

// A file is an object of its own in a chat, and the part itself in /v1/responses. Of several, each has its name before
// it. An empty line is between a file and what is beside it.
void add_file(const JsonFields& body, const char* field, const json& part, bool several, RequestFiles* files,
              std::string* text) {
  const FilePart file = files->read(body, field, part["type"] == "file" ? part.value("file", json()) : part);
  if (!text->empty() && !text->ends_with("\n\n")) *text += "\n\n";
  if (several) *text += "File: " + file.name + "\n\n";
  *text += file.text + "\n\n";
}

}  // namespace

std::string text_of_content(const JsonFields& body, const char* field, const json& content,
                            std::initializer_list<std::string_view> types, RequestFiles* files) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) body.refuse(field, "has a message whose content is neither a string nor a list of parts");
  const bool several = std::count_if(content.begin(), content.end(), is_file) > 1;
  std::string text;
  for (const json& part : content) {
    const json type = part.is_object() ? part.value("type", json()) : json();
    if (type == "image_url" || type == "input_image" || type == "image") {
      body.refuse(field, str("has an image (", shown(type), "): this program reads only text"));
    }
    const bool known =
        type.is_string() && std::find(types.begin(), types.end(), type.get<std::string>()) != types.end();
    if (known && is_file(part)) {
      add_file(body, field, part, several, files, &text);
      continue;
    }
    if (!known || !part.value("text", json()).is_string()) {
      body.refuse(field, "has a part that is not text: only text and files are supported");
    }
    text += part["text"].get<std::string>();
  }
  if (!content.empty() && is_file(content.back())) text.erase(text.find_last_not_of('\n') + 1);
  return text;
}

ordered_json call_message(const std::string& id, const std::string& name, const std::string& arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

void name_tool_answers(const JsonFields& body, const char* field, ordered_json* messages) {
  std::map<std::string, std::string> called;  // by the call's id
  for (ordered_json& message : *messages) {
    if (message.contains("tool_calls")) {
      for (const ordered_json& call : message["tool_calls"]) called[call["id"]] = call["function"]["name"];
    }
    if (message["role"] != "tool" || message.contains("name")) continue;
    const auto found = called.find(message.value("tool_call_id", ""));
    if (found == called.end()) body.refuse(field, "has a tool message whose tool_call_id matches no earlier call");
    message["name"] = found->second;
  }
}

ordered_json messages_of(const JsonFields& body, RequestFiles* files) {
  const json* list = body.find(kMessages);
  if (list == nullptr || !list->is_array() || list->empty()) body.refuse(kMessages, "must be a list of messages");
  ordered_json messages = ordered_json::array();
  for (const json& message : *list) messages.push_back(message_of(body, messages.size(), message, files));
  const ordered_json& last = messages.back()["role"];
  if (last != "user" && last != "tool") body.refuse(kMessages, "must end with a user or tool message");
  name_tool_answers(body, kMessages, &messages);
  return messages;
}

}  // namespace headrace
