#include <algorithm>
#include <array>

#include "cache/base.h"
#include "runtime/requests/answer_form.h"
#include "runtime/requests/answer_json.h"
#include "runtime/requests/fields.h"
#include "runtime/requests/messages.h"
#include "runtime/requests/responses.h"

namespace headrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kInput = "input";

std::string needed_text(const JsonFields& body, size_t index, const json& item, const char* key) {
  const json value = item.value(key, json());
  if (!value.is_string()) refuse_item(body, kInput, index, str("needs a string as its ", key));
  return value.get<std::string>();
}

// A call that the model made in an answer before. Calls that follow one another are one message.
void add_call(const JsonFields& body, size_t index, const json& item, ordered_json* messages) {
  const ordered_json call =
      call_message(needed_text(body, index, item, "call_id"), needed_text(body, index, item, "name"),
                   needed_text(body, index, item, "arguments"));
  if (messages->empty() || messages->back()["role"] != "assistant") {
    messages->push_back({{"role", "assistant"}, {"content", nullptr}});
  }
  ordered_json& calls = messages->back()["tool_calls"];
  if (calls.size() == kMaxMessageCalls)
    refuse_item(body, kInput, index,
                str("is one call too many: at most ", kMaxMessageCalls, " may follow one another"));
  calls.push_back(call);
}

void add_message(const JsonFields& body, size_t index, const json& item, RequestFiles* files, ordered_json* messages) {
  const json role = item.value("role", json());
  if (role != "system" && role != "developer" && role != "user" && role != "assistant") {
    refuse_item(body, kInput, index,
                "has the role " + shown(role) + ": only system, developer, user and assistant are supported");
  }
  const std::string text = text_of_content(body, kInput, item.value("content", json()),
                                           {"input_text", "output_text", "text", "input_file"}, files);
  messages->push_back({{"role", role}, {"content", text}});
}

void add_item(const JsonFields& body, size_t index, const json& item, RequestFiles* files, ordered_json* messages) {
  if (!item.is_object()) refuse_item(body, kInput, index, "is not an object");
  const json type = item.value("type", json("message"));
  if (type == "message") {
    add_message(body, index, item, files, messages);
  } else if (type == "function_call") {
    add_call(body, index, item, messages);
  } else if (type == "function_call_output") {
    const std::string text =
        text_of_content(body, kInput, item.value("output", json()), {"input_text", "text", "input_file"}, files);
    messages->push_back(
        {{"role", "tool"}, {"content", text}, {"tool_call_id", needed_text(body, index, item, "call_id")}});
  } else if (type != "reasoning") {  // the model's own of answers before, which templates leave out
    refuse_item(body, kInput, index,
                "has the type " + shown(type) +
                    ": only message, function_call, function_call_output and reasoning are supported");
  }
}

ordered_json messages_of_input(const JsonFields& body, RequestFiles* files) {
  ordered_json messages = ordered_json::array();
  const std::string instructions = body.string_or("instructions", "");
  if (!instructions.empty()) messages.push_back({{"role", "system"}, {"content", instructions}});
  const json* const input = body.find(kInput);
  if (input == nullptr) body.refuse(kInput, "");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", input->get<std::string>()}});
    return messages;
  }
  if (!input->is_array() || input->empty()) body.refuse(kInput, "must be a string or a list of items");
  for (size_t i = 0; i < input->size(); ++i) add_item(body, i, (*input)[i], files, &messages);
  const ordered_json last = messages.empty() ? ordered_json() : messages.back()["role"];
  if (last != "user" && last != "tool") body.refuse(kInput, "must end with a user or tool message");
  name_tool_answers(body, kInput, &messages);
  return messages;
}

bool is_effort(const json& value) { return value == "low" || value == "medium" || value == "high"; }

// How the model is to think.
void read_reasoning(const JsonFields& body, Conversation* conversation) {
  constexpr const char* kField = "reasoning";
  const json* const reasoning = body.find(kField);
  if (reasoning == nullptr) return;
  if (!reasoning->is_object()) body.refuse(kField, "must be an object");
  for (const auto& item : reasoning->items()) {
    const bool effort = item.key() == "effort" && (item.value() == "none" || is_effort(item.value()));
    const bool summary = (item.key() == "summary" || item.key() == "generate_summary") && item.value() == "auto";
    if (!item.value().is_null() && !effort && !summary) {
      body.refuse(kField, R"(is not supported: only {"effort"} of "none", "low", "medium" or "high" is)");
    }
  }
  const json effort = reasoning->value("effort", json());
  conversation->no_thinking = effort == "none";
  if (is_effort(effort)) conversation->effort = effort.get<std::string>();
}

void read_text(const JsonFields& body, const ordered_json& whole, Request* request) {
  constexpr const char* kField = "text";
  const json* const text = body.find(kField);
  if (text == nullptr) return;
  if (!text->is_object()) body.refuse(kField, "must be an object");
  for (const auto& item : text->items()) {
    const bool verbosity = item.key() == "verbosity" && item.value() == "medium";
    if (item.key() == "format" || item.value().is_null() || verbosity) continue;
    body.refuse(kField, str("has ", shown(item.key()), ", which is not supported"));
  }
  const auto format = whole[kField].find("format");
  if (format != whole[kField].end() && !format->is_null()) request->grammar = text_format_grammar(body, *format);
}

// What an answer repeats of its request.
std::string echo_of(const JsonFields& body, const ordered_json& whole, const Request& request) {
  const auto shared = [&](const char* key, const ordered_json& fallback) {
    return body.has(key) ? whole[key] : fallback;
  };
  const ordered_json text = {{"format", {{"type", "text"}}}};
  const std::string& effort = request.conversation.effort;
  return one_line(
      {{"instructions", shared("instructions", nullptr)},
       {"max_output_tokens", shared("max_output_tokens", nullptr)},
       {"metadata", shared("metadata", ordered_json::object())},
       {"parallel_tool_calls", shared("parallel_tool_calls", true)},
       {"previous_response_id", nullptr},
       {"reasoning", {{"effort", effort.empty() ? ordered_json() : ordered_json(effort)}, {"summary", nullptr}}},
       {"store", false},
       {"temperature", shared("temperature", nullptr)},
       {"text", shared("text", text)},
       {"tool_choice", shared("tool_choice", "auto")},
       {"tools", shared("tools", ordered_json::array())},
       {"top_p", shared("top_p", nullptr)},
       {"truncation", "disabled"}});
}

}  // namespace

void read_response_fields(const JsonFields& body, const ordered_json& whole, RequestFiles* files, Request* request) {
  request->conversation.messages = messages_of_input(body, files);
  read_reasoning(body, &request->conversation);
  read_text(body, whole, request);
  request->echo = echo_of(body, whole, *request);
}

}  // namespace headrace
