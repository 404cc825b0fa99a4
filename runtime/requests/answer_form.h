// The form of an answer that a request asks for: response_format (OpenAI), guided_json and structured_outputs (vLLM),
// json_schema (llama-server). Pure; any thread. Included by .cc files only.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/json_file.h"
#include "runtime/engine/options.h"
#include "runtime/grammar/grammar.h"

namespace headrace {

// Null: the request asks for none. `text`: the JSON that has the request's body at `place` ("" or "/body"), because a
// schema's properties have an order, which the body has lost. Throws Error(kBadInput) by the name of the field, and of
// a keyword that is not supported.
std::shared_ptr<const Grammar> answer_grammar(const JsonFields& body, std::string_view text, const char* place);

// Presence, frequency and repetition penalties. Throws as above.
PenaltySettings penalties_of(const JsonFields& body);

}  // namespace headrace
