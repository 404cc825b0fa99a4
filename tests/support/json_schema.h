// A validator of JSON by a schema, for the keywords that runtime/grammar has, written from the specification and apart
// from it. And random schemas.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <string>

namespace headrace::testing_support {

using SchemaJson = nlohmann::ordered_json;

inline size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

class JsonValidator {
 public:
  explicit JsonValidator(const SchemaJson& root) : root_(root) {}
  bool valid(const SchemaJson& value) const { return valid(root_, value); }

 private:
  static bool is(const std::string& type, const SchemaJson& v) {
    if (type == "integer")
      return v.is_number_integer() || (v.is_number() && std::floor(v.get<double>()) == v.get<double>());
    return (type == "string" && v.is_string()) || (type == "number" && v.is_number()) ||
           (type == "array" && v.is_array()) || (type == "object" && v.is_object()) ||
           (type == "boolean" && v.is_boolean()) || (type == "null" && v.is_null());
  }

  bool valid(const SchemaJson& s, const SchemaJson& v) const {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref") && !valid(root_.at(SchemaJson::json_pointer(s["$ref"].get<std::string>().substr(1))), v)) {
      return false;
    }
    const auto any = [&](const SchemaJson& list, const auto& test) {
      return std::any_of(list.begin(), list.end(), test);
    };
    if (s.contains("anyOf") && !any(s["anyOf"], [&](const SchemaJson& one) { return valid(one, v); })) return false;
    if (s.contains("enum") && !any(s["enum"], [&](const SchemaJson& one) { return one == v; })) return false;
    if (s.contains("const") && s["const"] != v) return false;
    if (s.contains("type")) {
      const SchemaJson types = s["type"].is_array() ? s["type"] : SchemaJson::array({s["type"]});
      if (!any(types, [&](const SchemaJson& type) { return is(type, v); })) return false;
    }
    if (v.is_number()) return number(s, v.get<double>());
    if (v.is_string()) return text(s, v.get<std::string>());
    if (v.is_array()) return list(s, v);
    return !v.is_object() || object(s, v);
  }

  static bool number(const SchemaJson& s, double v) {
    return v >= s.value("minimum", -1e300) && v <= s.value("maximum", 1e300) &&
           v > s.value("exclusiveMinimum", -1e300) && v < s.value("exclusiveMaximum", 1e300);
  }
  static bool text(const SchemaJson& s, const std::string& v) {
    if (s.contains("pattern") && !std::regex_search(v, std::regex(s["pattern"].get<std::string>()))) return false;
    return characters(v) >= s.value("minLength", size_t{0}) && characters(v) <= s.value("maxLength", SIZE_MAX);
  }
  bool list(const SchemaJson& s, const SchemaJson& v) const {
    if (v.size() < s.value("minItems", size_t{0}) || v.size() > s.value("maxItems", SIZE_MAX)) return false;
    return !s.contains("items") ||
           std::all_of(v.begin(), v.end(), [&](const SchemaJson& one) { return valid(s["items"], one); });
  }
  bool object(const SchemaJson& s, const SchemaJson& v) const {
    for (const SchemaJson& name : s.value("required", SchemaJson::array())) {
      if (!v.contains(name.get<std::string>())) return false;
    }
    const SchemaJson named = s.value("properties", SchemaJson::object());
    for (const auto& item : v.items()) {
      if (named.contains(item.key())) {
        if (!valid(named[item.key()], item.value())) return false;
      } else if (s.contains("additionalProperties") && !valid(s["additionalProperties"], item.value())) {
        return false;
      }
    }
    return true;
  }

  const SchemaJson root_;
};

// A schema whose answers are short. `depth`: of lists and objects.
inline SchemaJson random_schema(std::mt19937_64* random, int depth) {
  const auto below = [&](uint64_t n) { return (*random)() % n; };
  switch (below(depth > 0 ? 11 : 8)) {
    case 0:
      return {{"type", "integer"}, {"minimum", -static_cast<int>(below(200))}, {"maximum", below(3000)}};
    case 1:
      return {{"type", "number"}, {"exclusiveMinimum", -1.25}, {"maximum", 0.5 * static_cast<double>(below(50))}};
    case 2:
      return {{"type", "boolean"}};
    case 3:
      return {{"type", {"null", "boolean"}}};
    case 4:
      return {{"enum", {"red", "green \"\\", 3, nullptr}}};
    case 5:
      return {{"const", {{"a", {1, 2}}}}};
    case 6:
      return {{"type", "string"}, {"minLength", below(3)}, {"maxLength", 3 + below(10)}};
    case 7:
      return {{"type", "string"}, {"pattern", "^[A-Z][a-z]{1,5}(-[0-9]+)?$"}};
    case 8:
      return {{"type", "array"}, {"items", random_schema(random, depth - 1)}, {"minItems", below(2)}, {"maxItems", 3}};
    case 9:
      return {{"anyOf", {random_schema(random, depth - 1), random_schema(random, depth - 1)}}};
    default: {
      SchemaJson schema = {{"type", "object"}, {"properties", SchemaJson::object()}, {"required", SchemaJson::array()}};
      for (const char* const name : {"name", "größe", "id", "tags"}) {
        if (below(3) == 0) continue;
        schema["properties"][name] = random_schema(random, depth - 1);
        if (below(2) == 0) schema["required"].push_back(name);
      }
      schema["additionalProperties"] = false;
      return schema;
    }
  }
}

}  // namespace headrace::testing_support
