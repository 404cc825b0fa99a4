// What whole answers and streamed ones have in common, as JSON. Pure; any thread. Included by .cc files only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/engine/result.h"
#include "runtime/requests/request.h"
#include "runtime/requests/tool_calls.h"

namespace headrace {

std::string one_line(const nlohmann::ordered_json& json);  // invalid UTF-8 becomes U+FFFD
std::string answer_id(const std::string& key, const Request& request);
nlohmann::ordered_json usage_json(const GenerateResult& result);
nlohmann::ordered_json timings_json(const GenerateResult& result);  // llama-server's

// {"id", "type": "function", "function": {"name", "arguments"}}. `index`: of the answer's calls.
nlohmann::ordered_json tool_call_json(const std::string& key, size_t index, const ToolCall& call);

// `calls`: of the answer.
const char* finish_reason(const GenerateResult& result, size_t calls);

}  // namespace headrace
