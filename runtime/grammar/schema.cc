#include "runtime/grammar/schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/grammar/json_parts.h"
#include "runtime/grammar/pattern.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxLength = int64_t{1} << 24;  // of strings and lists
constexpr int kMaxDepth = 256;
constexpr size_t kMaxNodes = size_t{1} << 20;
constexpr size_t kMaxEnum = 4096, kMaxProperties = 1024;
constexpr int32_t kMaxSpaceBefore = 4;  // of an answer: what models write behind their thinking

// Keywords that change no answer.
constexpr auto kAnnotations = std::to_array<std::string_view>(
    {"title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "$defs", "definitions",
     "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema"});
// Keywords of each type, which a schema without `type` means.
constexpr auto kOfStrings = std::to_array<std::string_view>({"minLength", "maxLength", "pattern", "format"});
constexpr auto kOfNumbers =
    std::to_array<std::string_view>({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
constexpr auto kOfArrays = std::to_array<std::string_view>({"items", "minItems", "maxItems", "uniqueItems"});
constexpr auto kOfObjects = std::to_array<std::string_view>({"properties", "required", "additionalProperties"});
constexpr auto kTypes =
    std::to_array<std::string_view>({"string", "integer", "number", "array", "object", "boolean", "null"});

bool contains(const auto& all, std::string_view one) { return std::find(all.begin(), all.end(), one) != all.end(); }

// A schema and what to call it in errors.
struct Place {
  const Json& schema;
  std::string path;  // "schema.json: properties.name"; built on the way down
};

class Compiler {
 public:
  Compiler(const Json& root, const std::string& source) : root_(root), source_(source) {}

  Grammar grammar() {
    const int32_t space = g_.bytes(byte_set(" \t\r\n"), kReturnNode);
    const int32_t value = value_of({root_, ""}, kReturnNode);
    g_.start = g_.loop(space, 0, kMaxSpaceBefore, value);
    if (recurs_at_once(g_)) refuse({root_, ""}, "has a $ref that leads to itself");
    if (!drop_endless(&g_)) refuse({root_, ""}, "has no finite answer: none is valid");
    return std::move(g_);
  }

 private:
  [[noreturn]] void refuse(const Place& at, const std::string& why) const {
    throw_error(ExitCode::kBadInput, source_, (at.path.empty() ? "the schema" : at.path) + " " + why);
  }

  const Json* find(const Place& at, const char* key) const {
    const auto found = at.schema.find(key);
    return found == at.schema.end() ? nullptr : &*found;
  }

  static Place below(const Place& at, const std::string& key, const Json& schema) {
    return {schema, at.path.empty() ? key : at.path + "." + key};
  }

  bool has_any(const Place& at, const auto& keys) const {
    return std::any_of(keys.begin(), keys.end(), [&](std::string_view key) { return at.schema.contains(key); });
  }

  // Only these keywords, and what changes no answer, may be in the schema.
  void check_keywords(const Place& at, const auto& known) const {
    for (const auto& item : at.schema.items()) {
      const std::string_view key = item.key();
      if (contains(kAnnotations, key) || contains(known, key)) continue;
      refuse(at, "has the keyword " + shown(item.key()) + ", which is not supported" +
                     (key == "oneOf" ? ": use anyOf" : " here"));
    }
  }

  // ---- one schema ---------------------------------------------------------------------------------------------------

  int32_t value_of(const Place& at, int32_t next) {
    if (g_.nodes.size() > kMaxNodes) refuse(at, "makes the whole too large");
    if (depth_ == kMaxDepth) refuse(at, str("is more than ", kMaxDepth, " schemas deep"));
    ++depth_;
    const int32_t node = one_value(at, next);
    --depth_;
    return node;
  }

  int32_t one_value(const Place& at, int32_t next) {
    if (at.schema.is_boolean()) {
      if (!at.schema.get<bool>()) return g_.split({});
      return g_.call(any().value, next);
    }
    if (!at.schema.is_object()) refuse(at, "is " + shown(at.schema) + ", not a schema");
    if (const Json* ref = find(at, "$ref")) return reference(at, *ref, next);
    for (const char* const key : {"anyOf", "allOf"}) {
      if (const Json* list = find(at, key)) return alternatives(at, key, *list, next);
    }
    if (const Json* value = find(at, "const")) return constant(at, {*value}, "const", next);
    if (const Json* list = find(at, "enum")) {
      if (!list->is_array() || list->size() > kMaxEnum) {
        refuse(at, str("has an enum that is not a list of at most ", kMaxEnum, " values"));
      }
      return constant(at, {list->begin(), list->end()}, "enum", next);
    }
    return typed(at, next);
  }

  AnyJson any() {
    if (!any_) any_ = json_any(&g_);
    return *any_;
  }

  int32_t alternatives(const Place& at, const char* key, const Json& list, int32_t next) {
    check_keywords(at, std::to_array<std::string_view>({key}));
    if (!list.is_array() || list.empty()) refuse(at, str("has an ", key, " that is not a list of schemas"));
    const bool all = std::string_view(key) == "allOf";
    if (all && list.size() > 1) refuse(at, "has an allOf of more than one schema, which is not supported");
    std::vector<int32_t> choices;
    for (size_t i = 0; i < list.size(); ++i)
      choices.push_back(value_of(below(at, str(key, "[", i, "]"), list[i]), next));
    return g_.split(choices);
  }

  int32_t constant(const Place& at, const std::vector<Json>& values, const char* key, int32_t next) {
    check_keywords(at, std::to_array<std::string_view>({key, "type"}));
    std::vector<int32_t> choices;
    for (const Json& value : values) {
      if (!has_type(at, value)) continue;
      choices.push_back(g_.literal(value.dump(), next));
    }
    return g_.split(choices);
  }

  bool has_type(const Place& at, const Json& value) const {
    const std::vector<std::string> types = types_of(at);
    const auto is = [&](const std::string& type) {
      if (type == "string") return value.is_string();
      if (type == "integer") return value.is_number_integer();
      if (type == "number") return value.is_number();
      if (type == "array") return value.is_array();
      if (type == "object") return value.is_object();
      return type == "boolean" ? value.is_boolean() : value.is_null();
    };
    return types.empty() || std::any_of(types.begin(), types.end(), is);
  }

  // The types that the schema names; empty: none.
  std::vector<std::string> types_of(const Place& at) const {
    const Json* type = find(at, "type");
    if (type == nullptr) return {};
    std::vector<std::string> types;
    for (const Json& one : type->is_array() ? *type : Json::array({*type})) {
      if (!one.is_string() || !contains(kTypes, one.get<std::string>())) {
        refuse(at, "has the type " + shown(one) + ", which is not supported");
      }
      types.push_back(one.get<std::string>());
    }
    return types;
  }

  // ---- references ---------------------------------------------------------------------------------------------------

  const Json& target(const Place& at, const std::string& name) const {
    if (!name.starts_with('#'))
      refuse(at, "has the $ref " + shown(name) + ": only those within the schema are supported");
    try {
      return root_.at(Json::json_pointer(name.substr(1)));
    } catch (const Json::exception&) {
      refuse(at, "has the $ref " + shown(name) + ", which leads nowhere");
    }
  }

  int32_t reference(const Place& at, const Json& ref, int32_t next) {
    check_keywords(at, std::to_array<std::string_view>({"$ref"}));
    if (!ref.is_string()) refuse(at, "has a $ref that is not a text");
    const std::string name = ref.get<std::string>();
    const Json& schema = target(at, name);
    const auto [rule, added] = rules_.try_emplace(name, -1);
    if (added) {
      const int32_t node = rule->second = g_.later();
      g_.settle(node, value_of({schema, name}, kReturnNode));
    }
    return g_.call(rules_.at(name), next);
  }

  // ---- types --------------------------------------------------------------------------------------------------------

  int32_t typed(const Place& at, int32_t next) {
    std::vector<std::string_view> known = {"type"};
    std::vector<std::string> types = types_of(at);
    const auto add = [&](std::string_view type, const auto& keys, std::string_view other = "") {
      const bool named =
          std::any_of(types.begin(), types.end(), [&](const auto& t) { return t == type || t == other; });
      if (named || (types_of(at).empty() && has_any(at, keys))) known.insert(known.end(), keys.begin(), keys.end());
      if (!named && types_of(at).empty() && has_any(at, keys)) types.emplace_back(type);
    };
    add("string", kOfStrings);
    add("number", kOfNumbers, "integer");
    add("array", kOfArrays);
    add("object", kOfObjects);
    check_keywords(at, known);
    if (types.empty()) return g_.call(any().value, next);
    std::vector<int32_t> choices;
    for (const std::string& type : types) choices.push_back(of_type(at, type, next));
    return g_.split(choices);
  }

  int32_t of_type(const Place& at, const std::string& type, int32_t next) {
    if (type == "string") return text(at, next);
    if (type == "integer" || type == "number") return number(at, type == "integer", next);
    if (type == "array") return list(at, next);
    if (type == "object") return object(at, next);
    if (type == "null") return g_.literal("null", next);
    return g_.split({g_.literal("true", next), g_.literal("false", next)});
  }

  // A length: `fallback` if it is not given.
  int32_t length(const Place& at, const char* key, int32_t fallback) const {
    const Json* value = find(at, key);
    if (value == nullptr) return fallback;
    const bool whole = value->is_number() && std::floor(value->get<double>()) == value->get<double>();
    if (!whole || *value < 0 || *value > kMaxLength) {
      refuse(at, str("has the ", key, " ", shown(*value), ": it must be a whole number from 0 to ", kMaxLength));
    }
    return static_cast<int32_t>(value->get<double>());
  }

  int32_t text(const Place& at, int32_t next) {
    const int32_t min = length(at, "minLength", 0), max = length(at, "maxLength", -1);
    const Json *pattern = find(at, "pattern"), *format = find(at, "format");
    if (pattern == nullptr && format == nullptr) return json_string(&g_, min, max, next);
    if (min > 0 || max >= 0 || (pattern != nullptr && format != nullptr)) {
      refuse(at, "has more than one of pattern, format and lengths, which is not supported together");
    }
    const Json& one = pattern != nullptr ? *pattern : *format;
    if (!one.is_string()) refuse(at, "has a pattern or format that is not a text");
    std::string expression = one.get<std::string>();
    if (format != nullptr) {
      expression = format_pattern(expression);
      if (expression.empty()) {
        refuse(at, "has the format " + shown(one) + ", which is not supported: only " + format_names() + " are");
      }
    }
    return g_.literal("\"", pattern_body(&g_, expression, source_ + ": " + at.path, g_.literal("\"", next)));
  }

  std::optional<NumberBounds::Bound> bound(const Place& at, const char* key, bool exclusive) const {
    const Json* value = find(at, key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number()) refuse(at, str("has the ", key, " ", shown(*value), ", which is not a number"));
    std::string digits = value->dump();
    const double real = value->get<double>();
    if (digits.find('e') != std::string::npos && std::floor(real) == real && std::abs(real) < 0x1p63) {
      digits = str(static_cast<int64_t>(real));
    }
    if (digits.find('e') != std::string::npos) {
      refuse(at, str("has the ", key, " ", shown(*value), ": a bound must have a decimal form of at most 18 digits"));
    }
    return NumberBounds::Bound{.digits = digits, .exclusive = exclusive};
  }

  int32_t number(const Place& at, bool whole, int32_t next) {
    NumberBounds bounds{.low = bound(at, "minimum", false), .high = bound(at, "maximum", false)};
    const auto low = bound(at, "exclusiveMinimum", true), high = bound(at, "exclusiveMaximum", true);
    if ((low && bounds.low) || (high && bounds.high)) refuse(at, "has two bounds on one side, which is not supported");
    if (low) bounds.low = low;
    if (high) bounds.high = high;
    const std::optional<int32_t> node = whole ? json_integer(&g_, bounds, next) : json_number(&g_, bounds, next);
    return node ? *node : g_.split({});
  }

  int32_t list(const Place& at, int32_t next) {
    const Json* unique = find(at, "uniqueItems");
    if (unique != nullptr && *unique != false) refuse(at, "has the keyword \"uniqueItems\", which is not supported");
    const int32_t min = length(at, "minItems", 0), max = length(at, "maxItems", -1);
    if (max >= 0 && max < min) return g_.split({});
    const Json* items = find(at, "items");
    const int32_t element = items == nullptr ? any().value : value_of(below(at, "items", *items), kReturnNode);
    return json_array(&g_, element, min, max, next);
  }

  // ---- objects ------------------------------------------------------------------------------------------------------

  struct Property {
    std::string name;
    int32_t member;  // its name and value, up to kReturn
    bool required;
  };

  std::vector<Property> properties(const Place& at) {
    std::vector<Property> all;
    const Json* named = find(at, "properties");
    if (named != nullptr && (!named->is_object() || named->size() > kMaxProperties)) {
      refuse(at, str("has properties that are not an object of at most ", kMaxProperties));
    }
    if (named != nullptr) {
      for (const auto& item : named->items()) {
        const int32_t value = value_of(below(at, "properties." + item.key(), item.value()), kReturnNode);
        all.push_back({item.key(), g_.literal(Json(item.key()).dump() + ":", json_space(&g_, value)), false});
      }
    }
    const Json* required = find(at, "required");
    if (required == nullptr) return all;
    if (!required->is_array()) refuse(at, "has a required that is not a list of names");
    for (const Json& name : *required) {
      const auto found = std::find_if(all.begin(), all.end(), [&](const Property& p) { return p.name == name; });
      if (found == all.end()) refuse(at, "requires " + shown(name) + ", which is not among its properties");
      found->required = true;
    }
    return all;
  }

  // A member of another name, up to kReturn; none: there are none. Its name has no escapes.
  std::optional<int32_t> other_member(const Place& at, const std::vector<Property>& named) {
    const Json* others = find(at, "additionalProperties");
    if (others == nullptr ? !named.empty() : *others == false) return std::nullopt;
    const bool free = others == nullptr || *others == true;
    const int32_t value = free ? any().value : value_of(below(at, "additionalProperties", *others), kReturnNode);
    const int32_t end = g_.literal("\":", json_space(&g_, value));
    std::vector<std::string> names;
    for (const Property& p : named) {
      const std::string text = Json(p.name).dump();
      names.push_back(text.substr(1, text.size() - 2));
    }
    return g_.literal("\"", json_other_name(&g_, names, end));
  }

  int32_t object(const Place& at, int32_t next) {
    const std::vector<Property> all = properties(at);
    const std::optional<int32_t> other = other_member(at, all);
    const int32_t close = g_.literal("}", next), end = json_space(&g_, close);
    // What may follow the members so far: `first` if there are none.
    int32_t first = close, later = end;
    if (other) {
      later = g_.loop(g_.literal(",", json_space(&g_, *other)), 0, -1, end);
      first = g_.optional(g_.call(*other, later), close);
    }
    for (size_t i = all.size(); i > 0; --i) {
      const int32_t member = g_.call(all[i - 1].member, later);
      const int32_t after_comma = g_.literal(",", json_space(&g_, member));
      first = all[i - 1].required ? member : g_.optional(member, first);
      later = all[i - 1].required ? after_comma : g_.optional(after_comma, later);
    }
    return g_.literal("{", json_space(&g_, first));
  }

  const Json& root_;
  const std::string& source_;
  Grammar g_;
  std::optional<AnyJson> any_;
  std::map<std::string, int32_t> rules_;  // of $ref
  int depth_ = 0;
};

}  // namespace

std::shared_ptr<const Grammar> schema_grammar(std::string_view json, const std::string& source) {
  if (json.size() > kMaxSchemaBytes) {
    throw_error(ExitCode::kBadInput, source,
                str("has ", json.size(), " bytes: a schema has at most ", kMaxSchemaBytes));
  }
  const Json root = parse_ordered_json(json, source);
  Grammar grammar = Compiler(root, source).grammar();
  grammar.text = json;
  return std::make_shared<const Grammar>(std::move(grammar));
}

std::shared_ptr<const Grammar> json_object_grammar() {
  Grammar g;
  const int32_t space = g.bytes(byte_set(" \t\r\n"), kReturnNode);
  g.start = g.loop(space, 0, kMaxSpaceBefore, json_any(&g).object);
  g.text = "json";
  return std::make_shared<const Grammar>(std::move(g));
}

}  // namespace headrace
