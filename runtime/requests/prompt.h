// A request as the prompt that a model reads. Any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/requests/request.h"

namespace headrace {

enum class PromptForm { kByTemplate, kPlain };  // of a chat: by the model's template, or its texts alone

// Takes the messages out of the request, which are not needed any more. `source` names it in errors. Throws
// Error(kBadInput) for a prompt that does not fit the context, and as Engine::encode_conversation() does.
std::vector<int32_t> take_prompt(const Engine& engine, PromptForm form, const std::string& source, Request* request);

}  // namespace headrace
