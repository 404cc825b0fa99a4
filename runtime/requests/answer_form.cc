#include "runtime/requests/answer_form.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>

#include "runtime/grammar/schema.h"

namespace headrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// A schema, or the text of one, as guided_json may be.
std::shared_ptr<const Grammar> grammar_of(const JsonFields& body, const char* field, const ordered_json& schema,
                                          const std::string& name) {
  if (!schema.is_object() && !schema.is_string() && !schema.is_boolean()) body.refuse(field, "has no schema");
  const std::string text = schema.is_string() ? schema.get<std::string>() : schema.dump();
  return schema_grammar(text, body.source() + ": " + name);
}

// What a field has beside its schema would change the answer.
void check_members(const JsonFields& body, const char* field, std::initializer_list<std::string_view> known,
                   const json& value) {
  for (const auto& item : value.items()) {
    if (item.value().is_null() || std::find(known.begin(), known.end(), item.key()) != known.end()) continue;
    body.refuse(field, str("has ", shown(item.key()), ", which is not supported"));
  }
}

// Answers are valid by the schema whatever it says.
void check_strict(const JsonFields& body, const char* field, const json& value) {
  const json strict = value.value("strict", json());
  if (!strict.is_null() && !strict.is_boolean()) {
    body.refuse(field, str("has the strict ", shown(strict), ", not true or false"));
  }
}

std::shared_ptr<const Grammar> of_response_format(const JsonFields& body, const ordered_json& whole) {
  constexpr const char* kField = "response_format";
  const json* format = body.find(kField);
  if (format == nullptr || (format->is_object() && format->empty())) return nullptr;
  const json type = format->is_object() ? format->value("type", json()) : json();
  if (type == "text") return nullptr;
  if (type == "json_object") {
    check_members(body, kField, {"type", "schema"}, *format);
    const auto schema = whole[kField].find("schema");  // llama-server's
    if (schema == whole[kField].end() || schema->is_null()) return json_object_grammar();
    return grammar_of(body, kField, *schema, body.label("response_format.schema"));
  }
  if (type != "json_schema") body.refuse(kField, "must have the type \"text\", \"json_object\" or \"json_schema\"");
  check_members(body, kField, {"type", "json_schema"}, *format);
  const json inner = format->value("json_schema", json());
  if (!inner.is_object()) body.refuse(kField, "has no json_schema");
  check_members(body, kField, {"name", "description", "schema", "strict"}, inner);
  check_strict(body, kField, inner);
  const ordered_json& ordered = whole[kField]["json_schema"];
  const auto schema = ordered.find("schema");
  if (schema == ordered.end()) body.refuse(kField, "has a json_schema without a schema");
  return grammar_of(body, kField, *schema, body.label("response_format.json_schema.schema"));
}

// Of a field that is the schema itself: {} asks for nothing, as clients' defaults have it.
std::shared_ptr<const Grammar> of_schema_field(const JsonFields& body, const char* field, const ordered_json& whole) {
  const json* schema = body.find(field);
  if (schema == nullptr || (schema->is_object() && schema->empty())) return nullptr;
  return grammar_of(body, field, whole[field], body.label(field));
}

std::shared_ptr<const Grammar> of_structured_outputs(const JsonFields& body, const ordered_json& whole) {
  constexpr const char* kField = "structured_outputs";
  const json* outputs = body.find(kField);
  if (outputs == nullptr) return nullptr;
  if (!outputs->is_object()) body.refuse(kField, "must be an object");
  check_members(body, kField, {"json", "json_object"}, *outputs);
  const auto schema = whole[kField].find("json");
  if (schema != whole[kField].end() && !schema->is_null()) {
    return grammar_of(body, kField, *schema, body.label("structured_outputs.json"));
  }
  return outputs->value("json_object", json()) == true ? json_object_grammar() : nullptr;
}

}  // namespace

std::shared_ptr<const Grammar> text_format_grammar(const JsonFields& body, const ordered_json& format) {
  const json type = format.is_object() ? json(format.value("type", ordered_json())) : json();
  if (type == "text") return nullptr;
  if (type == "json_object") {
    check_members(body, "text", {"type"}, format);
    return json_object_grammar();
  }
  if (type != "json_schema") body.refuse("text", R"(has a format that is not "text", "json_object" or "json_schema")");
  check_members(body, "text", {"type", "name", "description", "schema", "strict"}, format);
  check_strict(body, "text", format);
  const auto schema = format.find("schema");
  if (schema == format.end()) body.refuse("text", "has a json_schema without a schema");
  return grammar_of(body, "text", *schema, body.label("text.format.schema"));
}

bool asks_for_form(const JsonFields& body) {
  constexpr const char* kFields[] = {"response_format", "guided_json", "json_schema", "structured_outputs"};
  return std::any_of(std::begin(kFields), std::end(kFields), [&](const char* field) { return body.has(field); });
}

std::shared_ptr<const Grammar> answer_grammar(const JsonFields& body, const ordered_json& whole) {
  if (!asks_for_form(body)) return nullptr;
  std::shared_ptr<const Grammar> grammar;
  const auto use = [&](const char* field, std::shared_ptr<const Grammar> one) {
    if (one == nullptr) return;
    if (grammar != nullptr) body.refuse(field, "sets a second answer format: give only one");
    grammar = std::move(one);
  };
  use("response_format", of_response_format(body, whole));
  use("guided_json", of_schema_field(body, "guided_json", whole));
  use("json_schema", of_schema_field(body, "json_schema", whole));
  use("structured_outputs", of_structured_outputs(body, whole));
  return grammar;
}

PenaltySettings penalties_of(const JsonFields& body) {
  constexpr double kMost = 2, kMostRepetition = 100, kLeastRepetition = 0.01;  // OpenAI's; what floats bear
  PenaltySettings penalties;
  penalties.presence = static_cast<float>(body.number_or("presence_penalty", -kMost, kMost, 0));
  penalties.frequency = static_cast<float>(body.number_or("frequency_penalty", -kMost, kMost, 0));
  for (const char* const name : {"repetition_penalty", "repeat_penalty"}) {
    const auto repetition = static_cast<float>(body.number_or(name, kLeastRepetition, kMostRepetition, 1));
    if (repetition != 1) penalties.repetition = repetition;
  }
  const json* const last = body.find("repeat_last_n");
  if (penalties.any() && last != nullptr && *last != -1) {
    body.refuse("repeat_last_n", "is not supported: penalties always cover all earlier tokens (-1)");
  }
  return penalties;
}

}  // namespace headrace
