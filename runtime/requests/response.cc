#include "runtime/requests/response.h"

#include <nlohmann/json.hpp>

#include "runtime/base/rounding.h"

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
  const int64_t computed = result.prompt_tokens - result.prefix.rows;
  ordered_json out = {{"cache_n", result.prefix.rows},
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

ordered_json body_json(const std::string& key, const Request& request, const GenerateResult& result, int64_t created) {
  const bool chat = request.kind == RequestKind::kChat;
  ordered_json choice = {{"index", 0}};
  if (chat) {
    choice["message"] = {{"role", "assistant"}, {"content", result.text}, {"refusal", nullptr}};
  } else {
    choice["text"] = result.text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = finish_reason_name(result.finish_reason);
  const auto answered = static_cast<int64_t>(result.token_ids.size());
  return {{"id", (chat ? "chatcmpl-" : "cmpl-") + key.substr(0, 24)},
          {"object", chat ? "chat.completion" : "text_completion"},
          {"created", created},
          {"model", request.model},
          {"choices", ordered_json::array({choice})},
          {"usage",
           {{"prompt_tokens", result.prompt_tokens},
            {"completion_tokens", answered},
            {"total_tokens", result.prompt_tokens + answered},
            {"prompt_tokens_details", {{"cached_tokens", result.prefix.rows}}}}},
          {"timings", timings_json(result)}};
}

}  // namespace

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
  const char* const code = error.code() == ExitCode::kDoesNotFit ? "does_not_fit" : "bad_input";
  line["custom_id"] = custom_id;
  line["response"] = {
      {"status_code", 400},
      {"request_id", "req_" + key.substr(0, 24)},
      {"body",
       {{"error",
         {{"message", error.what()}, {"type", "invalid_request_error"}, {"param", nullptr}, {"code", code}}}}}};
  return one_line(line);
}

}  // namespace headrace
