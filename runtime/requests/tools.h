// The tools of a request: what its answer may call. Pure; any thread.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/json_file.h"
#include "runtime/grammar/grammar.h"
#include "runtime/text/conversation.h"

namespace headrace {

// The JSON types that a parameter may have: a set.
constexpr unsigned kTextType = 1, kNullType = 2, kOtherTypes = 4;

struct ToolParameter {
  std::string name;
  unsigned types = kTextType | kNullType | kOtherTypes;
};

struct Tool {
  std::string name;
  std::vector<ToolParameter> parameters;
  bool strict = false;  // calls must be valid by the schema
  const ToolParameter* find(std::string_view parameter) const;
};

enum class ToolChoice { kNone, kAuto, kRequired };
enum class CallCount { kOne, kAny };  // parallel_tool_calls

// `tools`, `tool_choice` and `parallel_tool_calls` of a request.
struct ToolRequest {
  nlohmann::ordered_json definitions{};  // as a chat template has them; null: none
  std::vector<Tool> tools{};             // that the answer may call; empty: none
  ToolChoice choice = ToolChoice::kNone;
  CallCount count = CallCount::kAny;
};

// How a request writes them: within "function" (chat completions), or beside the type (responses).
enum class ToolStyle { kNested, kFlat };

// `whole`: the body with the members of objects in the order of its text. Throws Error(kBadInput) that names the field.
ToolRequest tools_of(const JsonFields& body, const nlohmann::ordered_json& whole, ToolStyle style);

// What an answer may be beside calls.
enum class BesideCalls { kNothing, kText };

// The answers that are calls of these tools, with arguments by the schemas of all. `beside`: kText also has answers
// without calls, and text before them. `other`: what an answer may be instead of calls; null: nothing. Throws
// Error(kBadInput) that names `source` and what of a tool's parameters is not supported.
std::shared_ptr<const Grammar> call_grammar(const ToolRequest& request, CallForm form, BesideCalls beside,
                                            const Grammar* other, const std::string& source);

}  // namespace headrace
