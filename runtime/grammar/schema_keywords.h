// The keywords of JSON Schema that a grammar knows. Included by .cc files only.
#pragma once

#include <algorithm>
#include <array>
#include <string_view>

namespace headrace {

bool contains(const auto& all, const auto& one) { return std::find(all.begin(), all.end(), one) != all.end(); }

// Those that change no answer; so do those that begin with "x-".
constexpr auto kAnnotations = std::to_array<std::string_view>(
    {"title", "description", "default", "examples", "example", "$schema", "$id", "$comment", "$defs", "definitions",
     "deprecated", "readOnly", "writeOnly", "contentMediaType", "contentEncoding", "contentSchema", "discriminator",
     "externalDocs", "xml"});
constexpr auto kComposers = std::to_array<std::string_view>({"$ref", "allOf", "anyOf", "oneOf"});
// Keywords of each type, which a schema without `type` means.
constexpr auto kOfStrings = std::to_array<std::string_view>({"minLength", "maxLength", "pattern", "format"});
constexpr auto kOfNumbers =
    std::to_array<std::string_view>({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
constexpr auto kOfArrays =
    std::to_array<std::string_view>({"items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems"});
constexpr auto kOfObjects =
    std::to_array<std::string_view>({"properties", "required", "additionalProperties", "patternProperties",
                                     "propertyNames", "minProperties", "maxProperties"});
// Of values of any type.
constexpr auto kOfAll = std::to_array<std::string_view>({"type", "enum", "const"});

inline bool is_keyword(std::string_view key) {
  return contains(kComposers, key) || contains(kOfAll, key) || contains(kOfStrings, key) || contains(kOfNumbers, key) ||
         contains(kOfArrays, key) || contains(kOfObjects, key);
}

}  // namespace headrace
