#include "runtime/requests/response.h"

#include <nlohmann/json.hpp>

#include "runtime/requests/answer_json.h"
#include "runtime/requests/log_probs.h"
#include "runtime/requests/responses.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

bool is_chat(const Request& request) { return request.kind == RequestKind::kChat; }

// *calls: how many it has.
ordered_json message_json(const std::string& key, const Request& request, const GenerateResult& result, size_t* calls) {
  const ThinkingPlace::Parts parts = request.reasoning_apart
                                         ? result.thinking.parts(result.text, !request.tools.tools.empty())
                                         : ThinkingPlace::Parts{.thinking = {}, .answer = result.text};
  ordered_json message = {{"role", "assistant"}, {"content", parts.answer}, {"refusal", nullptr}};
  if (!parts.thinking.empty()) message["reasoning_content"] = parts.thinking;
  if (request.tools.tools.empty()) return message;
  const auto [content, found] = split_tool_calls(request.tools.tools, request.tools.count, parts.answer);
  *calls = found.size();
  if (found.empty()) return message;
  message["content"] = content.empty() ? ordered_json() : ordered_json(content);
  for (size_t i = 0; i < found.size(); ++i) message["tool_calls"].push_back(tool_call_json(key, i, found[i]));
  return message;
}

ordered_json body_json(const std::string& key, const Request& request, const GenerateResult& result, int64_t created) {
  ordered_json choice = {{"index", 0}};
  size_t calls = 0;
  if (is_chat(request)) {
    choice["message"] = message_json(key, request, result, &calls);
  } else {
    choice["text"] = result.text;
  }
  choice["logprobs"] = log_probs_json(request, result.answer);
  choice["finish_reason"] = finish_reason(result, calls);
  return {{"id", answer_id(key, request)},
          {"object", is_chat(request) ? "chat.completion" : "text_completion"},
          {"created", created},
          {"model", request.model},
          {"choices", ordered_json::array({choice})},
          {"usage", usage_json(result)},
          {"timings", timings_json(result)}};
}

ordered_json error_object(const std::string& message, const std::string& type, const std::string& code) {
  return {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", code}}}};
}

}  // namespace

std::string completion_json(const std::string& key, const Request& request, const GenerateResult& result,
                            int64_t created) {
  if (request.kind == RequestKind::kResponse) return one_line(response_json(key, request, result, created));
  return one_line(body_json(key, request, result, created));
}

const char* error_code(const Error& error) {
  if (dynamic_cast<const ContextExceeded*>(&error) != nullptr) return "context_length_exceeded";
  return error.code() == ExitCode::kDoesNotFit ? "does_not_fit" : "bad_input";
}

std::string openai_error_json(const std::string& message, const std::string& type, const std::string& code) {
  return one_line(error_object(message, type, code));
}

std::string batch_result_line(const std::string& key, const BatchLine& line, const GenerateResult& result,
                              int64_t created) {
  return one_line({{"id", "batch_req_" + key},
                   {"custom_id", line.custom_id},
                   {"response",
                    {{"status_code", 200},
                     {"request_id", "req_" + key.substr(0, kIdDigits)},
                     {"body", body_json(key, line.request, result, created)}}},
                   {"error", nullptr}});
}

std::string batch_error_line(const std::string& key, const std::string& custom_id, const Error& error) {
  ordered_json line = {{"id", "batch_req_" + key}, {"custom_id", nullptr}, {"response", nullptr}, {"error", nullptr}};
  if (custom_id.empty()) {
    line["error"] = {{"code", "invalid_line"}, {"message", error.what()}};
    return one_line(line);
  }
  line["custom_id"] = custom_id;
  line["response"] = {{"status_code", 400},
                      {"request_id", "req_" + key.substr(0, kIdDigits)},
                      {"body", error_object(error.what(), "invalid_request_error", error_code(error))}};
  return one_line(line);
}

}  // namespace headrace
