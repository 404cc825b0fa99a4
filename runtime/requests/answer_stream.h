// An answer as server-sent events, by the address that was asked. Thread: one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/engine/result.h"
#include "runtime/requests/request.h"
#include "runtime/requests/response.h"

namespace headrace {

// Each function returns the events that follow, "data: JSON\n\n" each; empty: none.
class AnswerStream {
 public:
  virtual ~AnswerStream() = default;
  virtual std::string begin() = 0;
  virtual std::string progress(const PrefillProgress& progress) = 0;
  // What has come: thinking, then text. `tokens`: those of both, where the request asked for log-probabilities.
  virtual std::string add(const ThinkingPlace::Parts& text, const std::vector<AnswerToken>& tokens) = 0;
  virtual std::string end(const GenerateResult& result) = 0;
  virtual std::string fail(const AnswerError& error) = 0;
};

// `key`: as in completion_json(). Borrows the request.
std::unique_ptr<AnswerStream> open_answer_stream(const std::string& key, const Request& request, int64_t created);

}  // namespace headrace
