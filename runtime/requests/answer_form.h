// The form of an answer that a request asks for: response_format (OpenAI), guided_json and structured_outputs (vLLM),
// json_schema (llama-server). Pure; any thread. Included by .cc files only.
#pragma once

#include <memory>
#include <string_view>

#include "runtime/base/json_file.h"
#include "runtime/engine/options.h"
#include "runtime/grammar/grammar.h"

namespace headrace {

// Null: the request asks for none. `whole`: the body with the members of objects in the order of its text, which
// schemas need; null if asks_for_form() is false. Throws Error(kBadInput) by the name of the field, and of a keyword
// that is not supported.
std::shared_ptr<const Grammar> answer_grammar(const JsonFields& body, const nlohmann::ordered_json& whole);
// The same of text.format of a response; null: any text.
std::shared_ptr<const Grammar> text_format_grammar(const JsonFields& body, const nlohmann::ordered_json& format);
bool asks_for_form(const JsonFields& body);  // whether it has a field of these

// Presence, frequency and repetition penalties. Throws as above.
PenaltySettings penalties_of(const JsonFields& body);

}  // namespace headrace
