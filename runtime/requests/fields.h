// Which fields a request may have, and with which values. Pure; any thread. Included by .cc files only.
#pragma once

#include <nlohmann/json.hpp>

#include "runtime/base/json_file.h"

namespace headrace {

// A field is read by the parser, or changes no answer, or has a value that asks for nothing: null always does, and so
// do the defaults of OpenAI's, llama-server's and vLLM's fields. Throws Error(kBadInput) by the name of any other.
enum class KnownFields { kBatch, kServer, kResponse };  // kServer: also those of streams
void check_fields(const JsonFields& body, const nlohmann::json& object, KnownFields known);

// The reasoning_effort of a checked body: "low", "medium" or "high"; empty: none of them.
std::string effort_of(const JsonFields& body);
// Whether a checked body has one of the fields that ask the model not to think.
bool asks_for_no_thinking(const JsonFields& body);

// The same as check_fields() of the members of a message that are neither its role nor its content.
void check_message_fields(const JsonFields& body, const nlohmann::json& message);

// Throws Error(kBadInput) about an entry of a list: "messages[2] why".
[[noreturn]] void refuse_item(const JsonFields& body, const char* list, size_t index, const std::string& why);

}  // namespace headrace
