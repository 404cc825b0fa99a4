// The log-probabilities of an answer in OpenAI's form. Pure; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/engine/answer_token.h"
#include "runtime/requests/request.h"

namespace headrace {

// `choices[].logprobs` of these tokens: a chat's {"content", "refusal"} or a completion's {"tokens", "token_logprobs",
// "top_logprobs", "text_offset"}; null if the request did not ask for them. A logit of -infinity is -9999.
nlohmann::ordered_json log_probs_json(const Request& request, const std::vector<AnswerToken>& tokens);

}  // namespace headrace
