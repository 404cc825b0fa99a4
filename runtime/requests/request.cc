#include "runtime/requests/request.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/json_file.h"
#include "runtime/requests/answer_form.h"
#include "runtime/requests/fields.h"
#include "runtime/requests/file_part.h"
#include "runtime/requests/messages.h"
#include "runtime/requests/responses.h"

namespace headrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr size_t kMaxStops = 4;  // OpenAI's limit

enum class Door { kBatch, kServer };

std::string utf8(const JsonFields& body, const char* key, const json& value) {
  if (!value.is_string()) body.refuse(key, "must be a string");
  return value.get<std::string>();  // the parser refuses what is not UTF-8
}

std::vector<std::string> stops_of(const JsonFields& body) {
  std::vector<std::string> stops;
  const json* value = body.find("stop");
  if (value == nullptr) return stops;
  if (value->is_array()) {
    for (const json& stop : *value) stops.push_back(utf8(body, "stop", stop));
  } else {
    stops.push_back(utf8(body, "stop", *value));
  }
  std::erase(stops, "");  // stops nothing
  if (stops.size() > kMaxStops) body.refuse("stop", str("has ", stops.size(), " texts: at most ", kMaxStops));
  return stops;
}

// OpenAI's limits. A chat has a switch and a number, a completion has the number alone.
std::optional<int64_t> top_log_probs_of(const JsonFields& body, RequestKind kind) {
  constexpr int64_t kMaxCompletionLogProbs = 5;
  if (kind == RequestKind::kCompletion) {
    const bool none = body.has("top_logprobs") && *body.find("top_logprobs") == 0;  // as clients' defaults have it
    if (body.has("top_logprobs") && !none) {
      body.refuse("top_logprobs", str("belongs to chat completions: give logprobs, 0 to ", kMaxCompletionLogProbs));
    }
    if (!body.has("logprobs") || *body.find("logprobs") == false) return std::nullopt;
    return body.integer("logprobs", 0, kMaxCompletionLogProbs);
  }
  const bool wanted = body.boolean_or("logprobs", false);
  const int64_t top = body.integer_or("top_logprobs", 0, kMaxTopTokens, 0);
  if (top > 0 && !wanted) body.refuse("top_logprobs", "needs \"logprobs\": true");
  return wanted ? std::optional(top) : std::nullopt;
}

// A text, or a list of one, as clients send it that may send several.
std::string prompt_of(const JsonFields& body) {
  const json* prompt = body.find("prompt");
  if (prompt == nullptr) body.refuse("prompt", "");
  if (!prompt->is_array()) return utf8(body, "prompt", *prompt);
  if (prompt->empty()) body.refuse("prompt", "is an empty list");
  if (!prompt->front().is_string()) body.refuse("prompt", "must be a string: token ids are not supported");
  if (prompt->size() > 1) {
    body.refuse("prompt",
                str("has ", prompt->size(), " prompts: a request gets one answer, so send one request for each"));
  }
  return prompt->front().get<std::string>();
}

// -1: as many as the context holds.
int64_t max_tokens_of(const JsonFields& body, const char* key) {
  const json& value = *body.find(key);
  if (value.is_number() && value == -1) return -1;
  return std::min(body.integer(key, 1, INT64_MAX), kMaxTokens);
}

// llama-server's names, new and old, and vLLM's. -1: the program's own.
std::optional<int64_t> reasoning_budget_of(const JsonFields& body) {
  for (const char* key : {"reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget"}) {
    if (!body.has(key)) continue;
    const int64_t budget = body.integer(key, -1, INT32_MAX);
    if (budget >= 0) return budget;
  }
  return std::nullopt;
}

bool reasoning_apart_of(const JsonFields& body) {
  const std::string format = body.string_or("reasoning_format", "auto");
  if (format != "none" && format != "auto" && format != "deepseek") {
    body.refuse("reasoning_format", "is not supported: only \"none\", \"auto\" or \"deepseek\" is");
  }
  return format != "none";
}

// Clients send signed and unsigned numbers of 64 bits, and floats.
std::optional<uint64_t> seed_of(const JsonFields& body) {
  const json* const value = body.find("seed");
  if (value == nullptr) return std::nullopt;
  if (value->is_number_unsigned()) return value->get<uint64_t>();
  if (value->is_number_float()) {
    const double real = value->get<double>();
    if (real == std::floor(real) && real >= 0x1p63 && real < 0x1p64) return static_cast<uint64_t>(real);
  }
  return static_cast<uint64_t>(body.integer("seed", INT64_MIN, INT64_MAX));
}

bool has_tools(const JsonFields& body) {
  const json* const tools = body.find("tools");
  return tools != nullptr && !(tools->is_array() && tools->empty());
}

template <typename T>
std::optional<T> number_of(const JsonFields& body, const char* key, double min, double max) {
  if (!body.has(key)) return std::nullopt;
  return static_cast<T>(body.number(key, min, max));
}

void read_stream_fields(const JsonFields& body, Request* request) {
  request->stream = body.boolean_or("stream", false);
  request->return_progress = body.boolean_or("return_progress", false);
  const json* const options = body.find("stream_options");
  if (options != nullptr && !options->is_object()) body.refuse("stream_options", "must be an object");
  if (!request->stream) {
    if (request->return_progress) body.refuse("return_progress", "needs \"stream\": true");
    const bool asks = options != nullptr && std::any_of(options->begin(), options->end(), [](const json& value) {
                        return value != false && !value.is_null();
                      });
    if (asks) body.refuse("stream_options", "needs \"stream\": true");
  }
  if (options == nullptr) return;
  for (const auto& item : options->items()) {
    if (item.key() != "include_usage" && item.key() != "include_obfuscation") {
      body.refuse("stream_options", str("has the unknown field ", shown(item.key())));
    }
  }
  request->include_usage = JsonFields(*options, body.source(), "stream_options.").boolean_or("include_usage", false);
}

void read_sampling(const JsonFields& body, Request* request) {
  request->temperature = number_of<float>(body, "temperature", 0, 2);
  request->top_p = number_of<float>(body, "top_p", 1e-6, 1);
  request->min_p = number_of<float>(body, "min_p", 0, 1);
  if (body.has("top_k")) {
    const int64_t top_k = body.integer("top_k", -1, INT64_MAX);  // -1 and 0: of all tokens
    request->top_k = static_cast<int32_t>(std::clamp<int64_t>(top_k, 0, INT32_MAX));
  }
  request->seed = seed_of(body);
  request->penalties = penalties_of(body);
}

// What chats and completions have, and responses have not.
void read_completion(const JsonFields& body, const ordered_json& whole, RequestFiles* files, Request* request) {
  const bool chat = request->kind == RequestKind::kChat;
  request->reasoning_budget = reasoning_budget_of(body);
  request->reasoning_apart = reasoning_apart_of(body);
  const char* const wrong = chat ? "prompt" : "messages";
  if (body.has(wrong)) body.refuse(wrong, chat ? "belongs to completions" : "belongs to chat completions");
  if (chat) {
    request->conversation.messages = messages_of(body, files);
    request->conversation.no_thinking = asks_for_no_thinking(body) || request->reasoning_budget == 0;
    request->conversation.effort = effort_of(body);
  } else {
    request->prompt = prompt_of(body);
  }
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (body.has(key)) request->max_tokens = max_tokens_of(body, key);
  }
  request->stop = stops_of(body);
  request->grammar = answer_grammar(body, whole);
  request->top_log_probs = top_log_probs_of(body, request->kind);
}

void read_tools(const JsonFields& body, const ordered_json& whole, Request* request) {
  if (request->kind == RequestKind::kCompletion && has_tools(body)) {
    body.refuse("tools", "belongs to chat completions");
  }
  const bool response = request->kind == RequestKind::kResponse;
  request->tools = tools_of(body, whole, response ? ToolStyle::kFlat : ToolStyle::kNested);
}

// `text` has the object at `place`.
Request parse_body(const json& object, const std::string& source, RequestKind kind, Door door, std::string_view text,
                   const char* place, const FileRules& file_rules) {
  RequestFiles files(file_rules);
  const JsonFields body(object, source, door == Door::kBatch ? "body." : "");
  const bool response = kind == RequestKind::kResponse;
  check_fields(body, object,
               response                ? KnownFields::kResponse
               : door == Door::kServer ? KnownFields::kServer
                                       : KnownFields::kBatch);
  Request request;
  request.kind = kind;
  if (!body.has("model")) body.refuse("model", "");
  request.model = body.string_or("model", "");
  ordered_json whole;  // with the members of objects in the order of the text
  if (response || has_tools(body) || asks_for_form(body)) {
    whole = parse_ordered_json(text, source, JsonOrigin::kClient).at(ordered_json::json_pointer(place));
  }
  if (response) {
    read_response_fields(body, whole, &files, &request);
    if (body.has("max_output_tokens")) request.max_tokens = max_tokens_of(body, "max_output_tokens");
  } else {
    read_completion(body, whole, &files, &request);
  }
  read_sampling(body, &request);
  read_tools(body, whole, &request);
  if (door == Door::kServer) read_stream_fields(body, &request);
  return request;
}

}  // namespace

void Request::apply(GenerateOptions* options) const {
  SamplingSettings& s = options->sampling;
  if (max_tokens) options->max_tokens = *max_tokens;
  if (temperature) s.temperature = *temperature;
  if (top_p) s.top_p = *top_p;
  if (min_p) s.min_p = *min_p;
  if (top_k) s.top_k = *top_k;
  if (seed) s.seed = *seed;
  options->stop = stop;
  if (penalties.any()) options->penalties = penalties;
  if (grammar != nullptr) options->grammar = grammar;
  if (reasoning_budget) options->reasoning_budget = *reasoning_budget;
  if (top_log_probs) {
    options->log_probs = LogProbs::kComputed;
    options->top_tokens = *top_log_probs;
  }
}

std::string Request::text() const {
  if (kind == RequestKind::kCompletion) return prompt;
  std::string text;
  for (const auto& message : conversation.messages) {
    if (!text.empty()) text += '\n';
    if (message["content"].is_string()) text += message["content"].get_ref<const std::string&>();
  }
  return text;
}

std::optional<RequestKind> request_kind(std::string_view url) {
  if (url == "/v1/chat/completions") return RequestKind::kChat;
  if (url == "/v1/completions") return RequestKind::kCompletion;
  if (url == "/v1/responses") return RequestKind::kResponse;
  return std::nullopt;
}

Request parse_request(std::string_view json, RequestKind kind, const std::string& source, const FileRules& files) {
  return parse_body(parse_json_object(json, source, DuplicateKeys::kRefuse, JsonOrigin::kClient), source, kind,
                    Door::kServer, json, "", files);
}

BatchLine parse_batch_line(std::string_view text, const std::string& source, std::string* custom_id,
                           const FileRules& files) {
  const json object = parse_json_object(text, source, DuplicateKeys::kRefuse, JsonOrigin::kClient);
  const JsonFields line(object, source);
  BatchLine parsed;
  parsed.custom_id = line.string_or("custom_id", "");
  if (parsed.custom_id.empty()) line.refuse("custom_id", "must be a non-empty string");
  if (custom_id != nullptr) *custom_id = parsed.custom_id;
  if (line.string_or("method", "") != "POST") line.refuse("method", "must be \"POST\"");
  const std::optional<RequestKind> kind = request_kind(line.string_or("url", ""));
  if (!kind || *kind == RequestKind::kResponse)
    line.refuse("url", "must be \"/v1/chat/completions\" or \"/v1/completions\"");
  const json* body = line.find("body");
  if (body == nullptr || !body->is_object()) line.refuse("body", "must be an object");
  for (const auto& [name, value] : object.items()) {
    if (name != "custom_id" && name != "method" && name != "url" && name != "body") {
      line.refuse(name.c_str(), "is not supported: the fields are custom_id, method, url and body");
    }
  }
  parsed.request = parse_body(*body, source, *kind, Door::kBatch, text, "/body", files);
  return parsed;
}

}  // namespace headrace
