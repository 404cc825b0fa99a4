#include <utility>

#include "runtime/requests/answer_json.h"
#include "runtime/requests/response.h"
#include "runtime/requests/responses.h"
#include "runtime/requests/tool_calls.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

// The object "response", and what happens to it.
class Response {
 public:
  Response(const std::string& key, const Request& request, int64_t created)
      : key_(key.substr(0, kIdDigits)),
        created_(created),
        model_(request.model),
        echo_(ordered_json::parse(request.echo)),
        reader_(request.tools.tools, request.tools.count) {}

  std::string begin() {
    std::string events = event("response.created", {{"response", json("in_progress")}});
    events += event("response.in_progress", {{"response", json("in_progress")}});
    return events;
  }

  std::string add(const ThinkingPlace::Parts& parts) {
    std::string events;
    if (!parts.thinking.empty()) events += add_text(Kind::kReasoning, parts.thinking);
    if (!parts.answer.empty()) events += add_answer(reader_.push(parts.answer));
    return events;
  }

  std::string end(const GenerateResult& result) {
    std::string events = add_answer(reader_.finish());
    if (output_.empty() && kind_ == Kind::kNone) events += open(Kind::kMessage);  // an answer has one, if empty
    const bool whole = result.finish_reason == FinishReason::kStop;
    events += close(whole ? "completed" : "incomplete");
    finish(result);
    return events + event(whole ? "response.completed" : "response.incomplete", {{"response", final_}});
  }

  std::string fail(const AnswerError& error) {
    ordered_json failed = json("failed");
    failed["error"] = {{"code", "server_error"}, {"message", error.message}};
    return event("response.failed", {{"response", std::move(failed)}});
  }

  const ordered_json& final_json() const { return final_; }

 private:
  enum class Kind { kNone, kReasoning, kMessage };

  ordered_json json(const char* status) const {
    ordered_json out = {{"id", "resp_" + key_},   {"object", "response"},
                        {"created_at", created_}, {"status", status},
                        {"error", nullptr},       {"incomplete_details", nullptr},
                        {"model", model_},        {"output", ordered_json(output_)},
                        {"usage", nullptr}};
    out.update(echo_);
    return out;
  }

  void finish(const GenerateResult& result) {
    const bool whole = result.finish_reason == FinishReason::kStop;
    final_ = json(whole ? "completed" : "incomplete");
    if (!whole) final_["incomplete_details"] = {{"reason", "max_output_tokens"}};
    const auto answered = static_cast<int64_t>(result.token_ids.size());
    final_["usage"] = {{"input_tokens", result.prompt_tokens},
                       {"input_tokens_details", {{"cached_tokens", result.reused_tokens()}}},
                       {"output_tokens", answered},
                       {"output_tokens_details", {{"reasoning_tokens", result.thinking.tokens}}},
                       {"total_tokens", result.prompt_tokens + answered}};
  }

  std::string event(const std::string& type, ordered_json members) {
    ordered_json data = {{"type", type}, {"sequence_number", sequence_++}};
    data.update(members);
    return "event: " + type + "\ndata: " + one_line(data) + "\n\n";
  }

  std::string item_id(const char* prefix) const { return str(prefix, key_, "_", output_.size()); }

  // Of an event about the item that is open: its place in the output, and in the item.
  ordered_json at(ordered_json members) const {
    ordered_json out = {{"item_id", item_["id"]}, {"output_index", output_.size()}, {"content_index", 0}};
    out.update(members);
    return out;
  }

  ordered_json part(const std::string& text) const {
    if (kind_ == Kind::kReasoning) return {{"type", "reasoning_text"}, {"text", text}};
    return {{"type", "output_text"},
            {"text", text},
            {"annotations", ordered_json::array()},
            {"logprobs", ordered_json::array()}};
  }

  const char* deltas() const { return kind_ == Kind::kReasoning ? "response.reasoning_text" : "response.output_text"; }

  std::string open(Kind kind) {
    kind_ = kind;
    text_.clear();
    if (kind == Kind::kReasoning) {
      item_ = {{"id", item_id("rs_")}, {"type", "reasoning"}, {"summary", ordered_json::array()}};
    } else {
      item_ = {{"id", item_id("msg_")}, {"type", "message"}, {"role", "assistant"}};
    }
    item_["status"] = "in_progress";
    item_["content"] = ordered_json::array();
    std::string events = event("response.output_item.added", {{"output_index", output_.size()}, {"item", item_}});
    events += event("response.content_part.added", at({{"part", part("")}}));
    return events;
  }

  std::string close(const char* status) {
    if (kind_ == Kind::kNone) return "";
    ordered_json text = {{"text", text_}};
    if (kind_ == Kind::kMessage) text["logprobs"] = ordered_json::array();
    std::string events = event(str(deltas(), ".done"), at(text));
    events += event("response.content_part.done", at({{"part", part(text_)}}));
    item_["status"] = status;
    item_["content"].push_back(part(text_));
    kind_ = Kind::kNone;
    return events + put(std::exchange(item_, {}));
  }

  std::string put(ordered_json item) {
    std::string events = event("response.output_item.done", {{"output_index", output_.size()}, {"item", item}});
    output_.push_back(std::move(item));
    return events;
  }

  std::string add_text(Kind kind, const std::string& text) {
    std::string events;
    if (kind_ != kind) {
      events = close("completed");
      events += open(kind);
    }
    text_ += text;
    ordered_json delta = {{"delta", text}};
    if (kind == Kind::kMessage) delta["logprobs"] = ordered_json::array();
    return events + event(str(deltas(), ".delta"), at(delta));
  }

  std::string add_answer(const ToolCallReader::Parts& parts) {
    std::string events;
    if (!parts.content.empty()) events += add_text(Kind::kMessage, parts.content);
    for (const ToolCall& call : parts.calls) events += add_call(call);
    return events;
  }

  std::string add_call(const ToolCall& call) {
    std::string events = close("completed");
    const size_t place = output_.size();
    ordered_json item = {{"id", item_id("fc_")}, {"type", "function_call"}, {"call_id", item_id("call_")},
                         {"name", call.name},    {"arguments", ""},         {"status", "in_progress"}};
    events += event("response.output_item.added", {{"output_index", place}, {"item", item}});
    const ordered_json id = item["id"];
    events += event("response.function_call_arguments.delta",
                    {{"item_id", id}, {"output_index", place}, {"delta", call.arguments}});
    events += event("response.function_call_arguments.done",
                    {{"item_id", id}, {"output_index", place}, {"name", call.name}, {"arguments", call.arguments}});
    item["arguments"] = call.arguments;
    item["status"] = "completed";
    return events + put(std::move(item));
  }

  const std::string key_;
  const int64_t created_;
  const std::string model_;
  const ordered_json echo_;
  ToolCallReader reader_;
  std::vector<ordered_json> output_;  // finished items
  Kind kind_ = Kind::kNone;           // of the item that is open
  ordered_json item_, final_;
  std::string text_;  // of the item that is open
  int64_t sequence_ = 0;
};

class ResponseStream final : public AnswerStream {
 public:
  ResponseStream(const std::string& key, const Request& request, int64_t created) : response_(key, request, created) {}

  std::string begin() override { return response_.begin(); }
  std::string progress(const PrefillProgress&) override { return ""; }
  std::string add(const ThinkingPlace::Parts& text, const std::vector<AnswerToken>&) override {
    return response_.add(text);
  }
  std::string end(const GenerateResult& result) override { return response_.end(result); }
  std::string fail(const AnswerError& error) override { return response_.fail(error); }

 private:
  Response response_;
};

}  // namespace

ordered_json response_json(const std::string& key, const Request& request, const GenerateResult& result,
                           int64_t created) {
  Response response(key, request, created);
  response.add(result.thinking.parts(result.text, !request.tools.tools.empty()));
  response.end(result);
  return response.final_json();
}

std::unique_ptr<AnswerStream> open_response_stream(const std::string& key, const Request& request, int64_t created) {
  return std::make_unique<ResponseStream>(key, request, created);
}

}  // namespace headrace
