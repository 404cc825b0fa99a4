// Reads a JSON schema for a grammar: which schemas hold at a place at once, and what they ask for together. `$ref`,
// `allOf`, `anyOf` and `oneOf` become lists of plain places. Pure; any thread. Included by .cc files only.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/grammar/json_parts.h"

namespace headrace {

using SchemaJson = nlohmann::ordered_json;
using SchemaList = std::vector<const SchemaJson*>;

// A value's schemas, each of which it is valid by, and what to call the place in errors: "properties.name".
struct SchemaPlace {
  SchemaList all{};
  std::string path{};
  std::vector<std::string> needed{};  // names that the grammar requires beside `required`: see oneOf
};

// A set of JSON types.
using JsonTypes = unsigned;
constexpr JsonTypes kNullType = 1, kBooleanType = 2, kIntegerType = 4, kFractionType = 8, kStringType = 16,
                    kArrayType = 32, kObjectType = 64, kNumberTypes = kIntegerType | kFractionType, kAllTypes = 127;

// Whether one of them equals the value, whatever the order of members.
bool has_value(const std::vector<SchemaJson>& all, const SchemaJson& value);

class SchemaReader {
 public:
  // Both must outlive this.
  SchemaReader(const SchemaJson& root, const std::string& source) : root_(root), source_(source) {}

  const SchemaJson& root() const { return root_; }
  const std::string& source() const { return source_; }
  [[noreturn]] void refuse(const SchemaPlace& at, const std::string& why) const;
  std::string label(const SchemaPlace& at) const;  // "schema.json: properties.name"

  // The schemas themselves in place of references that stand alone. True: there were some.
  bool follow(SchemaPlace* at) const;
  // The list of an anyOf that stands alone; null: there is none.
  const SchemaJson* lone_any_of(const SchemaPlace& at) const;
  bool composed(const SchemaPlace& at) const;  // of $ref, allOf, anyOf, oneOf
  // Places without these. A value is valid at one of them, and at no two of a oneOf. None: no value is valid.
  std::vector<SchemaPlace> plain_places(const SchemaPlace& at) const;

  // ---- of plain places ----

  SchemaList each(const SchemaPlace& at, const char* key) const;  // the keyword's values
  // The types that answers have. Without `type` those that the keywords are of; without these all.
  JsonTypes types(const SchemaPlace& at) const;
  std::optional<std::vector<SchemaJson>> values(const SchemaPlace& at) const;  // of enum and const; none: any
  bool asks_for_more(const SchemaPlace& at) const;                             // than types and values

  // The greatest and the least of a length.
  int32_t most(const SchemaPlace& at, const char* key, int32_t fallback) const;
  int32_t least(const SchemaPlace& at, const char* key, int32_t fallback) const;
  NumberBounds bounds(const SchemaPlace& at) const;
  std::vector<std::string> factors(const SchemaPlace& at) const;  // of multipleOf
  std::vector<std::string> texts(const SchemaPlace& at, const char* key) const;

  // ---- of objects and lists ----

  std::vector<std::string> names(const SchemaPlace& at) const;  // of properties, in their order
  std::vector<std::string> required(const SchemaPlace& at) const;
  SchemaPlace member(const SchemaPlace& at, const std::string& name) const;
  // What a member is valid by whose name no property has; none: the grammar has no such members.
  std::optional<SchemaPlace> other_member(const SchemaPlace& at) const;
  std::optional<std::string> name_pattern(const SchemaPlace& at) const;  // of patternProperties
  bool matches(const SchemaPlace& at, const std::string& pattern, const std::string& text) const;

  size_t first_items(const SchemaPlace& at) const;  // how many have schemas of their own
  SchemaPlace item(const SchemaPlace& at, size_t index) const;
  bool has_rest(const SchemaPlace& at) const;  // whether items may follow the first ones

 private:
  struct Pending;
  using Places = std::vector<SchemaPlace>;

  void expand(SchemaPlace at, std::vector<Pending> pending, std::vector<Pending> choices, Places* out) const;
  void choose(const SchemaPlace& at, std::vector<Pending> choices, Places* out) const;
  void check_keywords(const SchemaPlace& at) const;
  const SchemaJson& target(const SchemaPlace& at, const SchemaJson& ref) const;
  JsonTypes named_types(const SchemaPlace& at) const;
  int32_t length(const SchemaPlace& at, const char* key, const SchemaJson& value) const;
  std::string decimal(const SchemaPlace& at, const char* key, const SchemaJson& value) const;
  // Whether no answer at the first place is valid at the second. May let the first need a name.
  bool excludes(SchemaPlace* first, const SchemaPlace& second) const;
  bool objects_exclude(SchemaPlace* first, const SchemaPlace& second) const;

  const SchemaJson& root_;
  const std::string& source_;
};

}  // namespace headrace
