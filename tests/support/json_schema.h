// A validator of JSON by a schema, for the keywords that runtime/grammar has, written from the specification and apart
// from it. And random schemas.
#pragma once

#include <algorithm>
#include <cmath>
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

  // Whatever the order of members.
  static bool same(const SchemaJson& a, const SchemaJson& b) { return nlohmann::json(a) == nlohmann::json(b); }
  const SchemaJson& target(std::string ref) const {
    for (size_t at = 0; (at = ref.find("%25", at)) != std::string::npos; ++at) ref.replace(at, 3, "%");
    return root_.at(SchemaJson::json_pointer(ref.substr(1)));
  }

  bool valid(const SchemaJson& s, const SchemaJson& v) const {
    if (s.is_boolean()) return s.get<bool>();
    if (s.contains("$ref") && !valid(target(s["$ref"].get<std::string>()), v)) return false;
    const auto any = [&](const SchemaJson& list, const auto& test) {
      return std::any_of(list.begin(), list.end(), test);
    };
    const auto holds = [&](const SchemaJson& one) { return valid(one, v); };
    if (s.contains("anyOf") && !any(s["anyOf"], holds)) return false;
    if (s.contains("allOf") && !std::all_of(s["allOf"].begin(), s["allOf"].end(), holds)) return false;
    if (s.contains("oneOf") && std::count_if(s["oneOf"].begin(), s["oneOf"].end(), holds) != 1) return false;
    if (s.contains("enum") && !any(s["enum"], [&](const SchemaJson& one) { return same(one, v); })) return false;
    if (s.contains("const") && !same(s["const"], v)) return false;
    if (s.contains("type")) {
      const SchemaJson types = s["type"].is_array() ? s["type"] : SchemaJson::array({s["type"]});
      if (!any(types, [&](const SchemaJson& type) { return is(type, v); })) return false;
    }
    if (v.is_number()) return number(s, v.get<double>());
    if (v.is_string()) return text(s, v.get<std::string>());
    if (v.is_array()) return list(s, v);
    return !v.is_object() || object(s, v);
  }

  // As decimals: 0.3 is a multiple of 0.1.
  static bool is_multiple(double v, double factor) {
    const double times = v / factor;
    return std::abs(times - std::round(times)) < 1e-9 * std::max(1.0, std::abs(times));
  }
  static bool number(const SchemaJson& s, double v) {
    if (s.contains("multipleOf") && !is_multiple(v, s["multipleOf"].get<double>())) return false;
    return v >= s.value("minimum", -1e300) && v <= s.value("maximum", 1e300) &&
           v > s.value("exclusiveMinimum", -1e300) && v < s.value("exclusiveMaximum", 1e300);
  }
  static bool text(const SchemaJson& s, const std::string& v) {
    if (s.contains("pattern") && !std::regex_search(v, std::regex(s["pattern"].get<std::string>()))) return false;
    return characters(v) >= s.value("minLength", size_t{0}) && characters(v) <= s.value("maxLength", SIZE_MAX);
  }
  bool list(const SchemaJson& s, const SchemaJson& v) const {
    if (v.size() < s.value("minItems", size_t{0}) || v.size() > s.value("maxItems", SIZE_MAX)) return false;
    if (s.value("uniqueItems", false)) {
      for (size_t i = 0; i < v.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (same(v[i], v[j])) return false;
        }
      }
    }
    const bool listed = s.contains("items") && s["items"].is_array();  // before draft 2020-12
    const SchemaJson first = listed ? s["items"] : s.value("prefixItems", SchemaJson::array());
    const SchemaJson rest = s.value(listed ? "additionalItems" : "items", SchemaJson(true));
    for (size_t i = 0; i < v.size(); ++i) {
      if (!valid(i < first.size() ? first[i] : rest, v[i])) return false;
    }
    return true;
  }
  bool object(const SchemaJson& s, const SchemaJson& v) const {
    for (const SchemaJson& name : s.value("required", SchemaJson::array())) {
      if (!v.contains(name.get<std::string>())) return false;
    }
    if (v.size() < s.value("minProperties", size_t{0}) || v.size() > s.value("maxProperties", SIZE_MAX)) return false;
    const SchemaJson named = s.value("properties", SchemaJson::object());
    const SchemaJson patterns = s.value("patternProperties", SchemaJson::object());
    for (const auto& item : v.items()) {
      if (s.contains("propertyNames") && !valid(s["propertyNames"], item.key())) return false;
      bool described = named.contains(item.key());
      if (described && !valid(named[item.key()], item.value())) return false;
      for (const auto& pattern : patterns.items()) {
        if (!std::regex_search(item.key(), std::regex(pattern.key()))) continue;
        described = true;
        if (!valid(pattern.value(), item.value())) return false;
      }
      if (!described && s.contains("additionalProperties") && !valid(s["additionalProperties"], item.value())) {
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
  switch (below(depth > 0 ? 17 : 11)) {
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
      return {{"type", "integer"}, {"multipleOf", 1 + below(40)}, {"minimum", 0}, {"maximum", 5000}};
    case 9:
      return {{"type", "number"}, {"multipleOf", 0.05}, {"minimum", -3}, {"exclusiveMaximum", 20}};
    case 10:
      return {{"type", "string"}, {"pattern", "^[a-d]+(,[a-d]+)*$"}, {"minLength", 2}, {"maxLength", 4 + below(6)}};
    case 11:
      return {{"type", "array"},
              {"prefixItems", {random_schema(random, depth - 1), random_schema(random, 0)}},
              {"minItems", below(3)},
              {"maxItems", 2}};
    case 12:
      return {{"type", "object"},
              {"patternProperties", {{"^[a-c]{1,3}$", random_schema(random, depth - 1)}}},
              {"additionalProperties", false},
              {"maxProperties", 3}};
    case 13:
      return {{"allOf",
               {{{"type", "object"}, {"properties", {{"a", random_schema(random, depth - 1)}}}, {"required", {"a"}}},
                {{"properties", {{"b", random_schema(random, depth - 1)}}}, {"required", {"b"}}}}}};
    case 14: {
      const auto kind = [&](const char* name) -> SchemaJson {
        return {{"type", "object"},
                {"properties", {{"kind", {{"const", name}}}, {"of", random_schema(random, depth - 1)}}},
                {"required", {"of"}},
                {"additionalProperties", false}};
      };
      return {{"oneOf", {kind("first"), kind("second"), {{"type", "null"}}}}};
    }
    case 15:
      return {{"type", "array"}, {"items", random_schema(random, depth - 1)}, {"minItems", below(2)}, {"maxItems", 3}};
    case 16:
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
