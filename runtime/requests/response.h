// Answers in OpenAI's form. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "cache/base.h"
#include "runtime/engine/result.h"
#include "runtime/requests/request.h"

namespace headrace {

// A line of a batch's results without its newline. `key`: 64 hexadecimal digits, of which the ids are made.
// {"id": "batch_req_KEY", "custom_id", "response": {"status_code": 200, "request_id", "body"}, "error": null}; the body
// is a chat.completion or a text_completion with `usage` and `timings` (milliseconds; llama-server's names, and
// "tokens_per_refresh" where there were refreshes).
std::string batch_result_line(const std::string& key, const BatchLine& line, const GenerateResult& result,
                              int64_t created);

// The same for a request that failed: status 400 with the error as its body. An empty `custom_id`: the line could not
// be read, so `response` is null, and `error` says why.
std::string batch_error_line(const std::string& key, const std::string& custom_id, const Error& error);

}  // namespace headrace
