// The messages of a chat request as a conversation. Pure, but for the converters of files; any thread. Included by .cc
// files only.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "runtime/base/json_file.h"
#include "runtime/requests/file_part.h"

namespace headrace {

// A string, or the texts of a list of parts, {"type": "text", "text"}, of which the types are named; of the types
// "file" and "input_file" that of file_part.h. Throws Error(kBadInput) that names `field` or the file.
std::string text_of_content(const JsonFields& body, const char* field, const nlohmann::json& content,
                            std::initializer_list<std::string_view> types, RequestFiles* files);

// The list at "messages" in the form of Conversation::messages. It ends with a message of the user or of a tool. Throws
// Error(kBadInput) that names what is wrong.
nlohmann::ordered_json messages_of(const JsonFields& body, RequestFiles* files);

// Of one message. A chat template without calls in parallel gets a message for each.
inline constexpr size_t kMaxMessageCalls = 256;

// The call of a tool in the form of Conversation::messages.
nlohmann::ordered_json call_message(const std::string& id, const std::string& name, const std::string& arguments);

// Gives each tool's answer the name of the function that was called, which some templates print. `field`: for errors.
void name_tool_answers(const JsonFields& body, const char* field, nlohmann::ordered_json* messages);

}  // namespace headrace
