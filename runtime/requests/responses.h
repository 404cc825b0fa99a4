// /v1/responses: OpenAI's newer form of requests and answers, for text and calls of functions. Pure; any thread. The
// request's fields: request.h. Included by .cc files only.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/json_file.h"
#include "runtime/engine/result.h"
#include "runtime/requests/answer_stream.h"
#include "runtime/requests/file_part.h"
#include "runtime/requests/request.h"

namespace headrace {

// The fields that only such requests have: input, instructions, max_output_tokens, text, reasoning. `whole`: the body
// with the members of objects in the order of its text. Throws Error(kBadInput) by the name of a field.
void read_response_fields(const JsonFields& body, const nlohmann::ordered_json& whole, RequestFiles* files,
                          Request* request);

// The object "response" of a whole answer.
nlohmann::ordered_json response_json(const std::string& key, const Request& request, const GenerateResult& result,
                                     int64_t created);
std::unique_ptr<AnswerStream> open_response_stream(const std::string& key, const Request& request, int64_t created);

}  // namespace headrace
