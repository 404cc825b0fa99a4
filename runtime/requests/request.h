// A request in OpenAI's form: the body of /v1/chat/completions, /v1/completions or /v1/responses as values. What it
// asks for and this program cannot do is an error, not ignored. Pure, but for the converters of files; any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/options.h"
#include "runtime/requests/tools.h"
#include "runtime/text/conversation.h"

namespace headrace {

enum class RequestKind { kChat, kCompletion, kResponse };

struct Request {
  RequestKind kind = RequestKind::kChat;
  std::string model;            // as the request names it; the answer repeats it
  Conversation conversation{};  // all but kCompletion
  std::string prompt;           // kCompletion: plain text
  std::optional<int64_t> max_tokens;
  std::optional<float> temperature, top_p, min_p;
  std::optional<int32_t> top_k;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  PenaltySettings penalties{};
  std::shared_ptr<const Grammar> grammar{};  // of the answer; null: any text, or the program's own
  std::optional<int64_t> reasoning_budget;   // tokens of thinking; -1: as the program was told to
  bool reasoning_apart = true;               // thinking is reasoning_content, not part of the content
  ToolRequest tools{};                       // not of kCompletion: what the answer may call
  std::optional<int64_t> top_log_probs;      // the answer has log-probabilities, and those of as many tokens a place
  // Of a server's answers only.
  bool stream = false;           // in pieces, as server-sent events
  bool include_usage = false;    // stream_options: a last piece has the usage
  bool return_progress = false;  // pieces during prefill, as llama-server has them
  std::string echo{};            // kResponse: what the answer repeats, a JSON object

  // Sets in `options` what the request gives.
  void apply(GenerateOptions* options) const;
  // The text that the model reads, for requests that begin alike.
  std::string text() const;
};

// "/v1/chat/completions", "/v1/completions" or "/v1/responses". None: another address.
std::optional<RequestKind> request_kind(std::string_view url);

// A small file may become a long text. 16 MiB are some 4M tokens.
inline constexpr uint64_t kMaxFileText = 16 * kMiB;

// What the files of a request may take, together.
struct FileRules {
  uint64_t text_bytes = kMaxFileText;
  double convert_seconds = 120;
  bool waits = true;  // while another file is converted; else ConverterBusy
  const std::atomic<bool>* interrupt = nullptr;
};

// Another request's file is being converted.
class ConverterBusy : public Error {
 public:
  explicit ConverterBusy(std::string file)
      : Error({ExitCode::kDoesNotFit, std::move(file), "was not converted: another file is being converted",
               "Ask again"}) {}
};

// The body of a request to a server, which may ask for a stream. `source` names it in errors. Throws Error(kBadInput)
// that names the field and its value; for files as RequestFiles::read().
Request parse_request(std::string_view json, RequestKind kind, const std::string& source, const FileRules& files = {});

// A line of a batch: {"custom_id", "method": "POST", "url", "body"}.
struct BatchLine {
  std::string custom_id;
  Request request;
};

// `source` names the line in errors: "requests.jsonl: line 7". Throws Error(kBadInput) that names the field and its
// value. `custom_id`, if given, receives the identity even where the rest is wrong.
BatchLine parse_batch_line(std::string_view json, const std::string& source, std::string* custom_id = nullptr,
                           const FileRules& files = {});

}  // namespace headrace
