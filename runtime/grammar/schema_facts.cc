// What the schemas of a plain place ask for together (schema_reader.h).
#include <algorithm>
#include <cmath>
#include <utility>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/grammar/intersection.h"
#include "runtime/grammar/schema_keywords.h"
#include "runtime/grammar/schema_reader.h"
#include "runtime/grammar/text_body.h"

namespace headrace {
namespace {

constexpr int64_t kMaxLength = int64_t{1} << 24;  // of strings and lists
constexpr size_t kMaxEnum = 4096, kMaxProperties = 1024;

struct TypeName {
  std::string_view name;
  JsonTypes types;
};
constexpr auto kTypeNames = std::to_array<TypeName>({{"string", kStringType},
                                                     {"integer", kIntegerType},
                                                     {"number", kNumberTypes},
                                                     {"array", kArrayType},
                                                     {"object", kObjectType},
                                                     {"boolean", kBooleanType},
                                                     {"null", kNullType}});

JsonTypes type_of(const SchemaJson& value) {
  if (value.is_number_float()) {
    const double real = value.get<double>();
    return std::floor(real) == real ? kIntegerType : kFractionType;
  }
  if (value.is_number()) return kIntegerType;
  if (value.is_string()) return kStringType;
  if (value.is_array()) return kArrayType;
  if (value.is_object()) return kObjectType;
  return value.is_boolean() ? kBooleanType : kNullType;
}

bool is_whole(const SchemaJson& value) {
  return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
}

const SchemaJson* find(const SchemaJson& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

}  // namespace

bool has_value(const std::vector<SchemaJson>& all, const SchemaJson& value) {
  return std::any_of(all.begin(), all.end(),
                     [&value](const SchemaJson& one) { return nlohmann::json(one) == nlohmann::json(value); });
}

SchemaList SchemaReader::each(const SchemaPlace& at, const char* key) const {
  SchemaList all;
  for (const SchemaJson* const schema : at.all) {
    if (const SchemaJson* const value = schema->is_object() ? find(*schema, key) : nullptr) all.push_back(value);
  }
  return all;
}

JsonTypes SchemaReader::named_types(const SchemaPlace& at) const {
  JsonTypes types = kAllTypes;
  for (const SchemaJson* const value : each(at, "type")) {
    JsonTypes some = 0;
    for (const SchemaJson& one : value->is_array() ? *value : SchemaJson::array({*value})) {
      const auto known = std::find_if(kTypeNames.begin(), kTypeNames.end(),
                                      [&one](const TypeName& t) { return one.is_string() && one == t.name; });
      if (known == kTypeNames.end()) refuse(at, "has the type " + shown(one) + ", which is not supported");
      some |= known->types;
    }
    types &= some;
  }
  return types;
}

JsonTypes SchemaReader::types(const SchemaPlace& at) const {
  if (const auto all = values(at)) {
    JsonTypes types = 0;
    for (const SchemaJson& value : *all) types |= type_of(value);
    return types;
  }
  if (!each(at, "type").empty()) return named_types(at);
  JsonTypes types = 0;
  const auto add = [&](JsonTypes some, const auto& keys) {
    for (const SchemaJson* const schema : at.all) {
      const bool has = schema->is_object() && std::any_of(keys.begin(), keys.end(),
                                                          [&](std::string_view key) { return schema->contains(key); });
      if (has) types |= some;
    }
  };
  add(kStringType, kOfStrings);
  add(kNumberTypes, kOfNumbers);
  add(kArrayType, kOfArrays);
  add(kObjectType, kOfObjects);
  return types == 0 ? kAllTypes : types;
}

std::optional<std::vector<SchemaJson>> SchemaReader::values(const SchemaPlace& at) const {
  std::optional<std::vector<SchemaJson>> all;
  const auto narrow = [&all](std::vector<SchemaJson> some) {
    if (all) std::erase_if(some, [&](const SchemaJson& value) { return !has_value(*all, value); });
    all = std::move(some);
  };
  for (const SchemaJson* const list : each(at, "enum")) {
    if (!list->is_array() || list->size() > kMaxEnum) {
      refuse(at, str("has an enum that is not a list of at most ", kMaxEnum, " values"));
    }
    narrow({list->begin(), list->end()});
  }
  for (const SchemaJson* const value : each(at, "const")) narrow({*value});
  const JsonTypes types = named_types(at);
  if (all) std::erase_if(*all, [types](const SchemaJson& value) { return (type_of(value) & types) == 0; });
  return all;
}

bool SchemaReader::asks_for_more(const SchemaPlace& at) const {
  const auto has = [](const SchemaJson* schema, const auto& keys) {
    return schema->is_object() &&
           std::any_of(keys.begin(), keys.end(), [schema](std::string_view key) { return schema->contains(key); });
  };
  return std::any_of(at.all.begin(), at.all.end(), [&](const SchemaJson* schema) {
    return has(schema, kOfStrings) || has(schema, kOfNumbers) || has(schema, kOfArrays) || has(schema, kOfObjects);
  });
}

// ---- lengths and bounds ---------------------------------------------------------------------------------------------

int32_t SchemaReader::length(const SchemaPlace& at, const char* key, const SchemaJson& value) const {
  if (!is_whole(value) || value < 0 || value > kMaxLength) {
    refuse(at, str("has the ", key, " ", shown(value), ", not a whole number from 0 to ", kMaxLength));
  }
  return static_cast<int32_t>(value.get<double>());
}

int32_t SchemaReader::most(const SchemaPlace& at, const char* key, int32_t fallback) const {
  for (const SchemaJson* const value : each(at, key)) fallback = std::max(fallback, length(at, key, *value));
  return fallback;
}

int32_t SchemaReader::least(const SchemaPlace& at, const char* key, int32_t fallback) const {
  for (const SchemaJson* const value : each(at, key)) {
    const int32_t one = length(at, key, *value);
    fallback = fallback < 0 ? one : std::min(fallback, one);
  }
  return fallback;
}

std::string SchemaReader::decimal(const SchemaPlace& at, const char* key, const SchemaJson& value) const {
  if (!value.is_number()) refuse(at, str("has the ", key, " ", shown(value), ", not a number"));
  std::string digits = value.dump();
  const double real = value.get<double>();
  if (digits.find('e') != std::string::npos && is_whole(value) && std::abs(real) < 0x1p63) {
    digits = str(static_cast<int64_t>(real));
  }
  if (digits.find('e') != std::string::npos) {
    refuse(at, str("has the ", key, " ", shown(value), ", which has no decimal form of at most 18 digits"));
  }
  return digits;
}

NumberBounds SchemaReader::bounds(const SchemaPlace& at) const {
  NumberBounds bounds;
  const auto add = [&](const char* key, bool low, bool exclusive) {
    for (const SchemaJson* const value : each(at, key)) {
      NumberBounds::Bound bound{.digits = decimal(at, key, *value), .exclusive = exclusive};
      low ? bounds.narrow_low(std::move(bound)) : bounds.narrow_high(std::move(bound));
    }
  };
  add("minimum", true, false);
  add("exclusiveMinimum", true, true);
  add("maximum", false, false);
  add("exclusiveMaximum", false, true);
  return bounds;
}

std::vector<std::string> SchemaReader::factors(const SchemaPlace& at) const {
  std::vector<std::string> all;
  for (const SchemaJson* const value : each(at, "multipleOf")) {
    if (value->is_number() && *value <= 0) refuse(at, str("has the multipleOf ", shown(*value), ", not above 0"));
    all.push_back(decimal(at, "multipleOf", *value));
  }
  return all;
}

std::vector<std::string> SchemaReader::texts(const SchemaPlace& at, const char* key) const {
  std::vector<std::string> all;
  for (const SchemaJson* const value : each(at, key)) {
    if (!value->is_string()) refuse(at, str("has the ", key, " ", shown(*value), ", not text"));
    if (std::string text = value->get<std::string>(); !contains(all, text)) all.push_back(std::move(text));
  }
  return all;
}

// ---- objects --------------------------------------------------------------------------------------------------------

std::vector<std::string> SchemaReader::names(const SchemaPlace& at) const {
  std::vector<std::string> all;
  for (const SchemaJson* const named : each(at, "properties")) {
    if (!named->is_object() || named->size() > kMaxProperties) {
      refuse(at, str("has properties that are not an object of at most ", kMaxProperties));
    }
    for (const auto& item : named->items()) {
      if (!contains(all, item.key())) all.push_back(item.key());
    }
  }
  return all;
}

std::vector<std::string> SchemaReader::required(const SchemaPlace& at) const {
  std::vector<std::string> all;
  for (const SchemaJson* const list : each(at, "required")) {
    const bool names =
        list->is_array() && std::all_of(list->begin(), list->end(), [](const SchemaJson& n) { return n.is_string(); });
    if (!names) refuse(at, "has a required that is not a list of names");
    for (const SchemaJson& name : *list) {
      if (!contains(all, name.get<std::string>())) all.push_back(name.get<std::string>());
    }
  }
  for (const std::string& name : at.needed) {
    if (!contains(all, name)) all.push_back(name);
  }
  return all;
}

SchemaPlace SchemaReader::member(const SchemaPlace& at, const std::string& name) const {
  SchemaPlace place{.all = {}, .path = str(at.path, at.path.empty() ? "" : ".", "properties.", name)};
  for (const SchemaJson* const schema : at.all) {
    bool described = false;
    const auto add = [&](const SchemaJson& one) {
      place.all.push_back(&one);
      described = true;
    };
    const SchemaJson* const named = find(*schema, "properties");
    if (named != nullptr && named->contains(name)) add((*named)[name]);
    if (const SchemaJson* const patterns = find(*schema, "patternProperties")) {
      for (const auto& item : patterns->items()) {
        if (matches(at, item.key(), name)) add(item.value());
      }
    }
    const SchemaJson* const others = find(*schema, "additionalProperties");
    if (!described && others != nullptr) add(*others);
  }
  return place;
}

bool SchemaReader::matches(const SchemaPlace& at, const std::string& pattern, const std::string& text) const {
  Grammar g;
  size_t states = kMaxTextStates;
  const std::string json = SchemaJson(text).dump();
  g.start = text_body(&g, {.with = {pattern}}, label(at), &states, kReturnNode);
  return has_text(g, std::string_view(json).substr(1, json.size() - 2));
}

std::optional<std::string> SchemaReader::name_pattern(const SchemaPlace& at) const {
  std::optional<std::string> pattern;
  for (const SchemaJson* const patterns : each(at, "patternProperties")) {
    if (!patterns->is_object()) refuse(at, "has patternProperties that are not an object");
    for (const auto& item : patterns->items()) {
      if (pattern && *pattern != item.key()) {
        refuse(at, "has patternProperties of more than one pattern, which is not supported");
      }
      pattern = item.key();
    }
  }
  return pattern;
}

std::optional<SchemaPlace> SchemaReader::other_member(const SchemaPlace& at) const {
  const std::optional<std::string> pattern = name_pattern(at);
  SchemaPlace place{.all = {}, .path = str(at.path, at.path.empty() ? "" : ".", "additionalProperties")};
  for (const SchemaJson* const schema : at.all) {
    const SchemaJson* const patterns = find(*schema, "patternProperties");
    const SchemaJson* const others = find(*schema, "additionalProperties");
    const SchemaJson* const one = patterns != nullptr && !patterns->empty() ? &patterns->front() : others;
    if (one != nullptr) place.all.push_back(one);
  }
  if (std::any_of(place.all.begin(), place.all.end(), [](const SchemaJson* s) { return *s == false; })) {
    return std::nullopt;
  }
  if (place.all.empty() && !names(at).empty()) return std::nullopt;
  return place;
}

// ---- lists ----------------------------------------------------------------------------------------------------------

namespace {

// The list of the first items' schemas: prefixItems, or items as drafts before 2020-12 have it. Null: there is none.
const SchemaJson* list_of_first(const SchemaJson& schema) {
  if (const SchemaJson* const first = find(schema, "prefixItems")) return first;
  const SchemaJson* const items = find(schema, "items");
  return items != nullptr && items->is_array() ? items : nullptr;
}

const SchemaJson* rest_of(const SchemaJson& schema) {
  const SchemaJson* const items = find(schema, "items");
  return items != nullptr && items->is_array() ? find(schema, "additionalItems") : items;
}

}  // namespace

size_t SchemaReader::first_items(const SchemaPlace& at) const {
  size_t most = 0;
  for (const SchemaJson* const schema : at.all) {
    const SchemaJson* const first = list_of_first(*schema);
    if (first == nullptr) continue;
    if (!first->is_array() || first->size() > kMaxProperties) {
      refuse(at, str("has prefixItems that are not a list of at most ", kMaxProperties, " schemas"));
    }
    most = std::max(most, first->size());
  }
  return most;
}

SchemaPlace SchemaReader::item(const SchemaPlace& at, size_t index) const {
  const bool own = index < first_items(at);
  SchemaPlace place{.all = {},
                    .path = str(at.path, at.path.empty() ? "" : ".", own ? str("prefixItems[", index, "]") : "items")};
  for (const SchemaJson* const schema : at.all) {
    const SchemaJson* const first = list_of_first(*schema);
    const SchemaJson* const one = first != nullptr && index < first->size() ? &(*first)[index] : rest_of(*schema);
    if (one != nullptr) place.all.push_back(one);
  }
  return place;
}

bool SchemaReader::has_rest(const SchemaPlace& at) const {
  return first_items(at) == 0 || std::any_of(at.all.begin(), at.all.end(),
                                             [](const SchemaJson* schema) { return rest_of(*schema) != nullptr; });
}

}  // namespace headrace
