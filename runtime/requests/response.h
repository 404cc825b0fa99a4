// Answers in OpenAI's form. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cache/base.h"
#include "runtime/engine/result.h"
#include "runtime/requests/request.h"

namespace headrace {

// A chat.completion, a text_completion or a response, with `usage` and `timings` (milliseconds; llama-server's names,
// and "tokens_per_refresh" where there were refreshes). `key`: at least 24 hexadecimal digits, of which the id is made.
// `created`: seconds since 1970.
std::string completion_json(const std::string& key, const Request& request, const GenerateResult& result,
                            int64_t created);

constexpr size_t kIdDigits = 24;  // of a key, in the ids of an answer

// What clients decide by: "context_length_exceeded", "does_not_fit" or "bad_input".
const char* error_code(const Error& error);
// {"error": {"message", "type", "param": null, "code"}}
std::string openai_error_json(const std::string& message, const std::string& type, const std::string& code);

// An answer that is an error, by OpenAI's names.
struct AnswerError {
  std::string message, type, code;
};

// How far a prefill is. Tokens: of the prompt; of a saved prefix; read so far, the saved ones included.
struct PrefillProgress {
  int64_t total = 0, cached = 0, processed = 0;
  double ms = 0;
};

// A line of a batch's results without its newline. `key`: 64 hexadecimal digits, of which the ids are made.
// {"id": "batch_req_KEY", "custom_id", "response": {"status_code": 200, "request_id", "body"}, "error": null}; the body
// is that of completion_json().
std::string batch_result_line(const std::string& key, const BatchLine& line, const GenerateResult& result,
                              int64_t created);

// The same for a request that failed: status 400 with the error as its body. An empty `custom_id`: the line could not
// be read, so `response` is null, and `error` says why.
std::string batch_error_line(const std::string& key, const std::string& custom_id, const Error& error);

}  // namespace headrace
