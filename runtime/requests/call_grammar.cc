// The grammar of answers that are calls of tools (tools.h).
#include <algorithm>
#include <string_view>
#include <utility>

#include "cache/base.h"
#include "runtime/grammar/schema.h"
#include "runtime/requests/tools.h"

namespace headrace {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kMark = "<tool_call>";  // before each call
constexpr int32_t kMaxCalls = 16;  // of an answer that must be calls: a small model might write them for ever

// The references of a schema that has become a part of another one, at `place`.
void move_references(ordered_json* schema, const std::string& place) {
  for (auto& item : schema->items()) {
    ordered_json& value = item.value();
    if (schema->is_object() && item.key() == "$ref" && value.is_string()) {
      const std::string target = value.get<std::string>();
      if (target.starts_with('#')) value = "#" + place + target.substr(1);
    } else if (value.is_structured()) {
      move_references(&value, place);
    }
  }
}

// {"name": NAME, "arguments": {...}} of any of the tools, behind the mark.
int32_t json_call_node(Grammar* g, const std::vector<const ordered_json*>& functions, const std::string& source) {
  ordered_json choices = ordered_json::array();
  for (const ordered_json* const function : functions) {
    ordered_json arguments = (*function)["parameters"];
    if (arguments.empty()) arguments["type"] = "object";
    move_references(&arguments, str("/anyOf/", choices.size(), "/properties/arguments"));
    choices.push_back({{"type", "object"},
                       {"properties", {{"name", {{"const", (*function)["name"]}}}, {"arguments", arguments}}},
                       {"required", {"name", "arguments"}}});
  }
  const int32_t object = g->append(*schema_grammar(ordered_json{{"anyOf", choices}}.dump(), source));
  return g->literal("\n", g->call(object, g->literal("\n</tool_call>", kReturnNode)));
}

// The value of a parameter and its closing mark: a text as it is, another value as JSON.
int32_t tagged_value(Grammar* g, const ordered_json& parameters, const Tool& tool, const std::string& name,
                     const std::string& source, int32_t next) {
  constexpr const char* kEnd = "\n</parameter>\n";
  ordered_json schema = parameters["properties"][name];
  const ToolParameter* const declared = tool.find(name);
  if (declared != nullptr && (declared->types & kTextType) != 0) {
    const auto values = schema.find("enum");
    if (values == schema.end() || !values->is_array()) return any_up_to(g, kEnd, next);
    std::vector<int32_t> choices;
    for (const ordered_json& value : *values) {
      choices.push_back(
          g->literal(value.is_string() ? value.get<std::string>() : value.dump(), g->literal(kEnd, next)));
    }
    return g->split(choices);
  }
  for (const char* const key : {"$defs", "definitions"}) {
    if (schema.is_object() && parameters.contains(key)) schema[key] = parameters[key];
  }
  return g->call(g->append(*schema_grammar(schema.dump(), source)), g->literal(kEnd, next));
}

// <function=NAME> and its parameters in the order of the schema.
int32_t tagged_call_node(Grammar* g, const ordered_json& function, const Tool& tool, const std::string& source) {
  const ordered_json& parameters = function["parameters"];
  const ordered_json required = parameters.value("required", ordered_json::array());
  int32_t node = g->literal("</function>\n</tool_call>", kReturnNode);
  for (size_t i = tool.parameters.size(); i > 0; --i) {
    const std::string& name = tool.parameters[i - 1].name;
    const int32_t value = tagged_value(g, parameters, tool, name, source + ".properties." + name, node);
    const int32_t parameter = g->literal("<parameter=" + name + ">\n", value);
    const bool needed = std::find(required.begin(), required.end(), name) != required.end();
    node = needed ? parameter : g->optional(parameter, node);
  }
  return g->literal("\n<function=" + tool.name + ">\n", node);
}

}  // namespace

std::shared_ptr<const Grammar> call_grammar(const ToolRequest& request, CallForm form, BesideCalls beside,
                                            const Grammar* other, const std::string& source) {
  std::vector<const ordered_json*> functions;
  std::vector<int32_t> choices;
  Grammar g;
  for (size_t i = 0; i < request.definitions.size(); ++i) {
    const ordered_json& function = request.definitions[i]["function"];
    const auto tool = std::find_if(request.tools.begin(), request.tools.end(),
                                   [&](const Tool& one) { return one.name == function["name"]; });
    if (tool == request.tools.end()) continue;  // tool_choice names another one
    const std::string name = str(source, "[", i, "].function.parameters");
    schema_grammar(function["parameters"].dump(), name);  // its errors have the tool's name
    functions.push_back(&function);
    if (form == CallForm::kXml) choices.push_back(tagged_call_node(&g, function, *tool, name));
  }
  CHECK(!functions.empty());
  const int32_t call = form == CallForm::kXml ? g.split(choices) : json_call_node(&g, functions, source);
  const int32_t further = g.literal("\n", g.literal(kMark, call));
  const int32_t more = g.loop(further, 0, request.count == CallCount::kOne ? 0 : kMaxCalls - 1, kReturnNode);
  const int32_t calls = g.call(call, more);  // behind the first mark
  g.start = beside == BesideCalls::kText ? any_up_to(&g, kMark, calls, kReturnNode) : g.literal(kMark, calls);
  if (other != nullptr) g.start = g.split({g.start, g.append(*other)});
  if (!drop_endless(&g)) throw_error(ExitCode::kBadInput, source, "allow no finite call");
  g.text = str("calls ", request.definitions.dump(), beside == BesideCalls::kText ? " text" : "");
  if (other != nullptr) g.text += " or " + other->text;
  return std::make_shared<const Grammar>(std::move(g));
}

}  // namespace headrace
