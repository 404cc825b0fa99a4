#include "runtime/requests/answer_stream.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/rounding.h"
#include "runtime/requests/answer_json.h"
#include "runtime/requests/log_probs.h"
#include "runtime/requests/responses.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

std::string event(const std::string& data) { return "data: " + data + "\n\n"; }

// A chat.completion.chunk or a text_completion in each event; the last is [DONE].
class CompletionStream final : public AnswerStream {
 public:
  CompletionStream(const std::string& key, const Request& request, int64_t created)
      : key_(key), request_(request), created_(created), reader_(request.tools.tools, request.tools.count) {}

  std::string begin() override {
    return is_chat() ? choice({{"role", "assistant"}, {"content", ""}}, "") : std::string();
  }

  std::string progress(const PrefillProgress& progress) override {
    ordered_json piece = piece_json(ordered_json::object(), "");
    piece["prompt_progress"] = {{"total", progress.total},
                                {"cache", progress.cached},
                                {"processed", progress.processed},
                                {"time_ms", to_decimals(progress.ms, 3)}};
    return event(one_line(piece));
  }

  std::string add(const ThinkingPlace::Parts& text, const std::vector<AnswerToken>& tokens) override {
    std::string events;
    if (!text.thinking.empty()) events += choice({{"reasoning_content", text.thinking}}, "");
    if (text.answer.empty() && tokens.empty()) return events;
    return events + add_answer(reader_.push(text.answer), tokens);
  }

  std::string end(const GenerateResult& result) override {
    std::string events = add_answer(reader_.finish(), {});
    ordered_json last = piece_json(ordered_json::object(), "", finish_reason(result, calls_));
    if (request_.include_usage) {
      events += event(one_line(last));
      last["choices"] = ordered_json::array();
      last["usage"] = usage_json(result);
    }
    last["timings"] = timings_json(result);
    return events + event(one_line(last)) + event("[DONE]");
  }

  std::string fail(const AnswerError& error) override {
    return event(openai_error_json(error.message, error.type, error.code)) + event("[DONE]");
  }

 private:
  bool is_chat() const { return request_.kind == RequestKind::kChat; }

  std::string add_answer(const ToolCallReader::Parts& parts, const std::vector<AnswerToken>& tokens) {
    std::string events;
    if (!parts.content.empty() || !tokens.empty())
      events += choice({{"content", parts.content}}, parts.content, tokens);
    for (const ToolCall& call : parts.calls) {
      ordered_json one = {{"index", calls_}};
      one.update(tool_call_json(key_, calls_++, call));
      events += choice({{"tool_calls", ordered_json::array({one})}}, "");
    }
    return events;
  }

  std::string choice(ordered_json delta, const std::string& text, const std::vector<AnswerToken>& tokens = {}) const {
    return event(one_line(piece_json(std::move(delta), text, nullptr, tokens)));
  }

  // A piece with one choice. `delta`: what a chat's piece adds; `text`: the same of a completion.
  ordered_json piece_json(ordered_json delta, const std::string& text, const char* reason = nullptr,
                          const std::vector<AnswerToken>& tokens = {}) const {
    ordered_json choice = {{"index", 0}};
    if (is_chat()) {
      choice["delta"] = std::move(delta);
    } else {
      choice["text"] = text;
    }
    choice["logprobs"] = tokens.empty() ? ordered_json() : log_probs_json(request_, tokens);
    choice["finish_reason"] = reason == nullptr ? ordered_json() : ordered_json(reason);
    ordered_json piece = {{"id", answer_id(key_, request_)},
                          {"object", is_chat() ? "chat.completion.chunk" : "text_completion"},
                          {"created", created_},
                          {"model", request_.model},
                          {"choices", ordered_json::array({choice})}};
    if (request_.include_usage) piece["usage"] = nullptr;
    return piece;
  }

  const std::string key_;
  const Request& request_;
  const int64_t created_;
  ToolCallReader reader_;
  size_t calls_ = 0;
};

}  // namespace

std::unique_ptr<AnswerStream> open_answer_stream(const std::string& key, const Request& request, int64_t created) {
  if (request.kind == RequestKind::kResponse) return open_response_stream(key, request, created);
  return std::make_unique<CompletionStream>(key, request, created);
}

}  // namespace headrace
