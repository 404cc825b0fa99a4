#include "runtime/requests/tools.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "cache/base.h"
#include "runtime/requests/fields.h"

namespace headrace {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr const char* kTools = "tools";
constexpr size_t kMaxTools = 256, kMaxName = 128;
constexpr int kMaxTypeDepth = 8;

unsigned type_named(const ordered_json& type) {
  if (type == "string") return kTextType;
  return type == "null" ? kNullType : kOtherTypes;
}

unsigned type_of_value(const ordered_json& value) {
  if (value.is_string()) return kTextType;
  return value.is_null() ? kNullType : kOtherTypes;
}

// The types that a schema allows; what it does not say itself may be any but a plain text.
unsigned types_of(const ordered_json& schema, int depth = 0) {
  unsigned types = 0;
  if (!schema.is_object() || depth == kMaxTypeDepth) return kNullType | kOtherTypes;
  const auto add_all = [&](const char* key, const auto& types_of_one) {
    const auto found = schema.find(key);
    if (found == schema.end() || !found->is_array()) return;
    for (const ordered_json& one : *found) types |= types_of_one(one);
  };
  if (schema.contains("type") && schema["type"].is_string()) types |= type_named(schema["type"]);
  add_all("type", type_named);
  if (types == 0) add_all("enum", type_of_value);
  if (types == 0 && schema.contains("const")) types |= type_of_value(schema["const"]);
  for (const char* const key : {"anyOf", "oneOf", "allOf"}) {
    if (types == 0) add_all(key, [depth](const ordered_json& one) { return types_of(one, depth + 1); });
  }
  return types == 0 ? kNullType | kOtherTypes : types;
}

std::vector<ToolParameter> parameters_of(const ordered_json& schema) {
  std::vector<ToolParameter> parameters;
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) return parameters;
  for (const auto& item : properties->items()) parameters.push_back({item.key(), types_of(item.value())});
  return parameters;
}

bool is_name(const std::string& name) {
  constexpr std::string_view kSigns = "_-.:/";
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || kSigns.find(c) != kSigns.npos;
  });
}

// {"name", "description", "parameters"}: what templates print. Clients' other members would change no prompt.
ordered_json function_of(const JsonFields& body, size_t index, const ordered_json& tool, ToolStyle style) {
  if (!tool.is_object() || tool.value("type", ordered_json()) != "function") {
    refuse_item(body, kTools, index,
                "has the type " + shown(tool.is_object() ? json(tool.value("type", ordered_json())) : json(tool)) +
                    ": only \"function\" is supported");
  }
  const ordered_json function = style == ToolStyle::kNested ? tool.value("function", ordered_json()) : tool;
  if (!function.is_object()) refuse_item(body, kTools, index, "has no function");
  ordered_json out = ordered_json::object();
  for (const auto& item : function.items()) {
    const std::string& key = item.key();
    const bool known = key == "name" || key == "description" || key == "parameters";
    if (key == "strict" && !item.value().is_null() && !item.value().is_boolean()) {
      refuse_item(body, kTools, index, "has the strict " + shown(json(item.value())) + ", not true or false");
    }
    const bool passed_over = key == "strict" || (key == "type" && style == ToolStyle::kFlat);
    if (item.value().is_null() || passed_over) continue;
    if (!known) refuse_item(body, kTools, index, "has " + shown(key) + ", which is not supported");
    out[key] = item.value();
  }
  if (!out.contains("name") || !out["name"].is_string() || !is_name(out["name"])) {
    refuse_item(body, kTools, index, str("needs a name of letters, digits, _, -, ., : and / (at most ", kMaxName, ")"));
  }
  if (out.contains("description") && !out["description"].is_string()) {
    refuse_item(body, kTools, index, "has a description that is not a string");
  }
  if (!out.contains("parameters")) out["parameters"] = {{"type", "object"}, {"properties", ordered_json::object()}};
  if (!out["parameters"].is_object() || out["parameters"].value("type", ordered_json("object")) != "object") {
    refuse_item(body, kTools, index, "has parameters that are not an object schema");
  }
  return out;
}

bool is_strict(const ordered_json& tool, ToolStyle style) {
  const ordered_json& function = style == ToolStyle::kNested ? tool["function"] : tool;
  return function.contains("strict") && function["strict"] == true;
}

// The name of the function that a tool_choice names; empty: it names none.
std::string named_function(const json& choice, ToolStyle style) {
  if (!choice.is_object() || choice.value("type", json()) != "function") return "";
  const json function = style == ToolStyle::kNested ? choice.value("function", json()) : choice;
  const json name = function.is_object() ? function.value("name", json()) : json();
  return name.is_string() ? name.get<std::string>() : "";
}

void read_choice(const JsonFields& body, ToolStyle style, ToolRequest* request) {
  constexpr const char* kField = "tool_choice";
  const json* const choice = body.find(kField);
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    request->choice = ToolChoice::kNone;
    return;
  }
  const std::string name = named_function(*choice, style);
  if (*choice != "required" && name.empty()) {
    body.refuse(kField, R"(is not supported: only "none", "auto", "required" or a function is)");
  }
  if (request->tools.empty()) body.refuse(kField, "needs tools");
  request->choice = ToolChoice::kRequired;
  if (name.empty()) return;
  std::erase_if(request->tools, [&](const Tool& tool) { return tool.name != name; });
  if (request->tools.empty()) body.refuse(kField, "names a function that is not among the tools");
  request->count = CallCount::kOne;
}

}  // namespace

const ToolParameter* Tool::find(std::string_view parameter) const {
  const auto found = std::find_if(parameters.begin(), parameters.end(),
                                  [&](const ToolParameter& one) { return one.name == parameter; });
  return found == parameters.end() ? nullptr : &*found;
}

ToolRequest tools_of(const JsonFields& body, const ordered_json& whole, ToolStyle style) {
  ToolRequest request;
  const bool parallel = body.boolean_or("parallel_tool_calls", true);
  if (!parallel) request.count = CallCount::kOne;
  const json* const list = body.find(kTools);
  if (list != nullptr && (!list->is_array() || list->size() > kMaxTools)) {
    body.refuse(kTools, str("must be a list of at most ", kMaxTools));
  }
  ordered_json definitions = ordered_json::array();
  if (list != nullptr && !list->empty()) {
    for (const ordered_json& tool : whole[kTools]) {
      const ordered_json function = function_of(body, definitions.size(), tool, style);
      const std::string name = function["name"];
      if (std::any_of(request.tools.begin(), request.tools.end(), [&](const Tool& t) { return t.name == name; })) {
        refuse_item(body, kTools, definitions.size(), "repeats the name of another tool, " + shown(name));
      }
      request.tools.push_back({name, parameters_of(function["parameters"]), is_strict(tool, style)});
      definitions.push_back({{"type", "function"}, {"function", function}});
    }
  }
  if (!request.tools.empty()) request.choice = ToolChoice::kAuto;
  read_choice(body, style, &request);
  if (request.choice == ToolChoice::kNone) {
    request.tools.clear();
  } else {
    request.definitions = std::move(definitions);
  }
  return request;
}

}  // namespace headrace
