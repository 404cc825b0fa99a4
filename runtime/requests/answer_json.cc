#include "runtime/requests/answer_json.h"

#include "runtime/base/rounding.h"
#include "runtime/requests/response.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

double per_second(int64_t count, double ms) {
  return ms > 0 ? to_decimals(1000 * static_cast<double>(count) / ms, 3) : 0;
}

}  // namespace

std::string one_line(const ordered_json& json) {
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string answer_id(const std::string& key, const Request& request) {
  return (request.kind == RequestKind::kChat ? "chatcmpl-" : "cmpl-") + key.substr(0, kIdDigits);
}

ordered_json usage_json(const GenerateResult& result) {
  const auto answered = static_cast<int64_t>(result.token_ids.size());
  return {{"prompt_tokens", result.prompt_tokens},
          {"completion_tokens", answered},
          {"total_tokens", result.prompt_tokens + answered},
          {"prompt_tokens_details", {{"cached_tokens", result.reused_tokens()}}},
          {"completion_tokens_details", {{"reasoning_tokens", result.thinking.tokens}}}};
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

ordered_json tool_call_json(const std::string& key, size_t index, const ToolCall& call) {
  return {{"id", str("call_", key.substr(0, kIdDigits), "_", index)},
          {"type", "function"},
          {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

const char* finish_reason(const GenerateResult& result, size_t calls) {
  const bool called = calls > 0 && result.finish_reason == FinishReason::kStop;
  return called ? "tool_calls" : finish_reason_name(result.finish_reason);
}

}  // namespace headrace
