#include "runtime/requests/response.h"

#include <nlohmann/json.hpp>

#include "runtime/base/rounding.h"
#include "runtime/requests/log_probs.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

std::string one_line(const ordered_json& line) {
  return line.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

double per_second(int64_t count, double ms) {
  return ms > 0 ? to_decimals(1000 * static_cast<double>(count) / ms, 3) : 0;
}

ordered_json timings_json(const GenerateResult& result) {
  const Timings& t = result.timings;
  const int64_t computed = result.prompt_tokens - result.reused_tokens();
  ordered_json out = {{"cache_n", result.reused_tokens()},
                      {"prompt_n", computed},
                      {"prompt_ms", to_decimals(t.ttft_ms, 3)},
                      {"prompt_per_second", per_second(computed, t.ttft_ms)},
                      {"predicted_n", static_cast<int64_t>(result.token_ids.size())},
                      {"predicted_ms", to_decimals(t.decode_ms, 3)},
                      {"predicted_per_second", per_second(t.decode_tokens, t.decode_ms)}};
  const Speculation::Kind& refresh = result.speculation.of(StepMode::kRefresh);
  if (refresh.steps > 0) {
    out["tokens_per_refresh"] =
        to_decimals(static_cast<double>(refresh.committed) / static_cast<double>(refresh.steps), 1);
  }
  return out;
}

bool is_chat(const Request& request) { return request.kind == RequestKind::kChat; }

std::string answer_id(const std::string& key, const Request& request) {
  return (is_chat(request) ? "chatcmpl-" : "cmpl-") + key.substr(0, 24);
}

ordered_json usage_json(const GenerateResult& result) {
  const auto answered = static_cast<int64_t>(result.token_ids.size());
  return {{"prompt_tokens", result.prompt_tokens},
          {"completion_tokens", answered},
          {"total_tokens", result.prompt_tokens + answered},
          {"prompt_tokens_details", {{"cached_tokens", result.reused_tokens()}}},
          {"completion_tokens_details", {{"reasoning_tokens", result.thinking.tokens}}}};
}

ordered_json message_json(const Request& request, const GenerateResult& result) {
  ordered_json message = {{"role", "assistant"}, {"content", result.text}, {"refusal", nullptr}};
  if (!request.reasoning_apart) return message;
  const ThinkingPlace::Parts parts = result.thinking.parts(result.text);
  message["content"] = parts.answer;
  if (!parts.thinking.empty()) message["reasoning_content"] = parts.thinking;
  return message;
}

ordered_json body_json(const std::string& key, const Request& request, const GenerateResult& result, int64_t created) {
  ordered_json choice = {{"index", 0}};
  if (is_chat(request)) {
    choice["message"] = message_json(request, result);
  } else {
    choice["text"] = result.text;
  }
  choice["logprobs"] = log_probs_json(request, result.answer);
  choice["finish_reason"] = finish_reason_name(result.finish_reason);
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

// A piece with one choice. `delta`: what a chat's piece adds; `text`: the same of a completion.
ordered_json piece_json(const std::string& id, const Request& request, int64_t created, ordered_json delta,
                        const std::string& text, const char* finish_reason = nullptr,
                        const std::vector<AnswerToken>& tokens = {}) {
  ordered_json choice = {{"index", 0}};
  if (is_chat(request)) {
    choice["delta"] = std::move(delta);
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = tokens.empty() ? ordered_json() : log_probs_json(request, tokens);
  choice["finish_reason"] = finish_reason == nullptr ? ordered_json() : ordered_json(finish_reason);
  ordered_json piece = {{"id", id},
                        {"object", is_chat(request) ? "chat.completion.chunk" : "text_completion"},
                        {"created", created},
                        {"model", request.model},
                        {"choices", ordered_json::array({choice})}};
  if (request.include_usage) piece["usage"] = nullptr;
  return piece;
}

}  // namespace

std::string completion_json(const std::string& key, const Request& request, const GenerateResult& result,
                            int64_t created) {
  return one_line(body_json(key, request, result, created));
}

const char* error_code(const Error& error) {
  if (dynamic_cast<const ContextExceeded*>(&error) != nullptr) return "context_length_exceeded";
  return error.code() == ExitCode::kDoesNotFit ? "does_not_fit" : "bad_input";
}

std::string openai_error_json(const std::string& message, const std::string& type, const std::string& code) {
  return one_line(error_object(message, type, code));
}

AnswerPieces::AnswerPieces(const std::string& key, const Request& request, int64_t created)
    : id_(answer_id(key, request)), request_(request), created_(created) {}

std::string AnswerPieces::role() const {
  return one_line(piece_json(id_, request_, created_, {{"role", "assistant"}, {"content", ""}}, ""));
}

std::string AnswerPieces::progress(const PrefillProgress& progress) const {
  ordered_json piece = piece_json(id_, request_, created_, ordered_json::object(), "");
  piece["prompt_progress"] = {{"total", progress.total},
                              {"cache", progress.cached},
                              {"processed", progress.processed},
                              {"time_ms", to_decimals(progress.ms, 3)}};
  return one_line(piece);
}

std::string AnswerPieces::thinking(const std::string& text) const {
  return one_line(piece_json(id_, request_, created_, {{"reasoning_content", text}}, ""));
}

std::string AnswerPieces::text(const std::string& text, const std::vector<AnswerToken>& tokens) const {
  return one_line(piece_json(id_, request_, created_, {{"content", text}}, text, nullptr, tokens));
}

std::vector<std::string> AnswerPieces::end(const GenerateResult& result) const {
  ordered_json last =
      piece_json(id_, request_, created_, ordered_json::object(), "", finish_reason_name(result.finish_reason));
  if (!request_.include_usage) {
    last["timings"] = timings_json(result);
    return {one_line(last)};
  }
  ordered_json usage = last;
  usage["choices"] = ordered_json::array();
  usage["usage"] = usage_json(result);
  usage["timings"] = timings_json(result);
  return {one_line(last), one_line(usage)};
}

std::string batch_result_line(const std::string& key, const BatchLine& line, const GenerateResult& result,
                              int64_t created) {
  return one_line({{"id", "batch_req_" + key},
                   {"custom_id", line.custom_id},
                   {"response",
                    {{"status_code", 200},
                     {"request_id", "req_" + key.substr(0, 24)},
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
                      {"request_id", "req_" + key.substr(0, 24)},
                      {"body", error_object(error.what(), "invalid_request_error", error_code(error))}};
  return one_line(line);
}

}  // namespace headrace
