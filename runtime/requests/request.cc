#include "runtime/requests/request.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/json_file.h"
#include "runtime/text/document.h"

namespace headrace {
namespace {

using nlohmann::json;

constexpr int64_t kMaxTokens = int64_t{1} << 40;
constexpr size_t kMaxStops = 4;  // OpenAI's limit

// Fields that change no answer.
constexpr std::array<std::string_view, 9> kIgnored = {"user",
                                                      "metadata",
                                                      "store",
                                                      "service_tier",
                                                      "prompt_cache_key",
                                                      "safety_identifier",
                                                      "stream_options",
                                                      "prompt_cache_retention",
                                                      "verbosity"};
constexpr std::array<std::string_view, 13> kRead = {
    "model", "messages", "prompt", "max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k",
    "min_p", "seed",     "stop",   "logprobs",   "top_logprobs"};

// Fields of a server's requests.
constexpr std::array<std::string_view, 2> kOfStreams = {"stream", "return_progress"};

// Fields that are accepted with the one value that asks for nothing.
struct Fixed {
  const char* name;
  const char* value;  // JSON
};
constexpr std::array<Fixed, 10> kFixed = {{{"n", "1"},
                                           {"best_of", "1"},
                                           {"stream", "false"},
                                           {"echo", "false"},
                                           {"presence_penalty", "0"},
                                           {"frequency_penalty", "0"},
                                           {"logit_bias", "{}"},
                                           {"tools", "[]"},
                                           {"suffix", "\"\""},
                                           {"response_format", R"({"type":"text"})"}}};

bool contains(const auto& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

enum class Door { kBatch, kServer };

void check_fields(const JsonFields& body, const json& object, Door door) {
  for (const auto& item : object.items()) {
    const std::string& name = item.key();
    if (contains(kRead, name) || contains(kIgnored, name) || item.value().is_null()) continue;
    if (door == Door::kServer && contains(kOfStreams, name)) continue;
    const auto fixed = std::find_if(kFixed.begin(), kFixed.end(), [&name](const Fixed& f) { return name == f.name; });
    if (fixed == kFixed.end()) body.refuse(name.c_str(), "is not supported: this program does not know the field");
    if (item.value() != json::parse(fixed->value)) {
      body.refuse(name.c_str(), str("is not supported: only ", fixed->value, " is"));
    }
  }
}

std::string utf8(const JsonFields& body, const char* key, const json& value) {
  if (!value.is_string()) body.refuse(key, "must be text");
  return value.get<std::string>();  // the parser refuses what is not UTF-8
}

// A string, or a list of {"type": "text", "text"}.
std::string content_of(const JsonFields& body, const json& message) {
  const auto content = message.find("content");
  if (content == message.end()) body.refuse("messages", "has a message without content");
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array()) body.refuse("messages", "has a message whose content is neither text nor a list of parts");
  std::string text;
  for (const json& part : *content) {
    if (!part.is_object() || part.value("type", json()) != "text" || !part.value("text", json()).is_string()) {
      body.refuse("messages", "has a part that is not text: only text is supported");
    }
    text += part["text"].get<std::string>();
  }
  return text;
}

ChatMessages messages_of(const JsonFields& body) {
  const json* list = body.find("messages");
  if (list == nullptr || !list->is_array() || list->empty()) body.refuse("messages", "must be a list of messages");
  ChatMessages messages;
  for (size_t i = 0; i < list->size(); ++i) {
    const json& message = (*list)[i];
    if (!message.is_object()) body.refuse("messages", "has a message that is not an object");
    const json role = message.value("role", json());
    if ((role == "system" || role == "developer") && i == 0) {
      messages.system = content_of(body, message);
    } else if (role == "user" || role == "assistant") {
      messages.earlier.push_back({role == "assistant", content_of(body, message)});
    } else {
      throw_error(ExitCode::kBadInput, body.source(),
                  str(body.label("messages"), "[", i, "] has the role ", shown(role),
                      ": only user and assistant are supported, and system for the first message"));
    }
  }
  if (messages.earlier.empty() || messages.earlier.back().assistant) {
    body.refuse("messages", "does not end with a message of the user");
  }
  messages.user = std::move(messages.earlier.back().content);
  messages.earlier.pop_back();
  return messages;
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
  if (stops.size() > kMaxStops) body.refuse("stop", str("has ", stops.size(), " texts: at most ", kMaxStops));
  for (const std::string& stop : stops) {
    if (stop.empty()) body.refuse("stop", "has an empty text");
  }
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
    if (options != nullptr) body.refuse("stream_options", "needs \"stream\": true");
  }
  if (options == nullptr) return;
  for (const auto& item : options->items()) {
    if (item.key() != "include_usage" && item.key() != "include_obfuscation") {
      body.refuse("stream_options", str("has the unknown field ", shown(item.key())));
    }
  }
  request->include_usage = JsonFields(*options, body.source(), "stream_options.").boolean_or("include_usage", false);
}

Request parse_body(const json& object, const std::string& source, RequestKind kind, Door door) {
  const JsonFields body(object, source, door == Door::kBatch ? "body." : "");
  check_fields(body, object, door);
  Request request;
  request.kind = kind;
  if (!body.has("model")) body.refuse("model", "");
  request.model = body.string_or("model", "");
  const char* const wrong = kind == RequestKind::kChat ? "prompt" : "messages";
  if (body.has(wrong)) body.refuse(wrong, "belongs to the other kind of completion");
  if (kind == RequestKind::kChat) {
    request.messages = messages_of(body);
  } else {
    const json* prompt = body.find("prompt");
    if (prompt == nullptr) body.refuse("prompt", "");
    request.prompt = utf8(body, "prompt", *prompt);
  }
  for (const char* key : {"max_tokens", "max_completion_tokens"}) {
    if (body.has(key)) request.max_tokens = body.integer(key, 1, kMaxTokens);
  }
  request.temperature = number_of<float>(body, "temperature", 0, 2);
  request.top_p = number_of<float>(body, "top_p", 1e-6, 1);
  request.min_p = number_of<float>(body, "min_p", 0, 1);
  if (body.has("top_k")) request.top_k = static_cast<int32_t>(body.integer("top_k", 0, INT32_MAX));
  if (body.has("seed")) request.seed = static_cast<uint64_t>(body.integer("seed", INT64_MIN, INT64_MAX));
  request.stop = stops_of(body);
  request.top_log_probs = top_log_probs_of(body, kind);
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
  if (top_log_probs) {
    options->log_probs = LogProbs::kComputed;
    options->top_tokens = *top_log_probs;
  }
}

std::string Request::text() const {
  if (kind == RequestKind::kCompletion) return prompt;
  std::string text = messages.system;
  for (const ChatTurn& turn : messages.earlier) text += '\n' + turn.content;
  return text + '\n' + messages.user;
}

std::optional<RequestKind> request_kind(std::string_view url) {
  if (url == "/v1/chat/completions") return RequestKind::kChat;
  if (url == "/v1/completions") return RequestKind::kCompletion;
  return std::nullopt;
}

Request parse_request(std::string_view json, RequestKind kind, const std::string& source) {
  return parse_body(parse_json_object(json, source, DuplicateKeys::kRefuse), source, kind, Door::kServer);
}

BatchLine parse_batch_line(std::string_view text, const std::string& source, std::string* custom_id) {
  const json object = parse_json_object(text, source, DuplicateKeys::kRefuse);
  const JsonFields line(object, source);
  BatchLine parsed;
  parsed.custom_id = line.string_or("custom_id", "");
  if (parsed.custom_id.empty()) line.refuse("custom_id", "must be a text that is not empty");
  if (custom_id != nullptr) *custom_id = parsed.custom_id;
  if (line.string_or("method", "") != "POST") line.refuse("method", "must be \"POST\"");
  const std::optional<RequestKind> kind = request_kind(line.string_or("url", ""));
  if (!kind) line.refuse("url", "must be \"/v1/chat/completions\" or \"/v1/completions\"");
  const json* body = line.find("body");
  if (body == nullptr || !body->is_object()) line.refuse("body", "must be an object");
  for (const auto& [name, value] : object.items()) {
    if (name != "custom_id" && name != "method" && name != "url" && name != "body") {
      line.refuse(name.c_str(), "is not supported: a line has custom_id, method, url and body");
    }
  }
  parsed.request = parse_body(*body, source, *kind, Door::kBatch);
  return parsed;
}

}  // namespace headrace
