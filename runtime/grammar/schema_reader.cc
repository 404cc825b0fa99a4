#include "runtime/grammar/schema_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/grammar/schema_keywords.h"

namespace headrace {
namespace {

constexpr size_t kMaxPlaces = 1024;

bool is_annotation(std::string_view key) { return key.starts_with("x-") || contains(kAnnotations, key); }

// Whether the schema has this keyword and nothing else that asks for something.
bool has_alone(const SchemaJson& schema, std::string_view keyword) {
  if (!schema.is_object() || !schema.contains(keyword)) return false;
  return std::all_of(schema.items().begin(), schema.items().end(),
                     [&](const auto& item) { return item.key() == keyword || is_annotation(item.key()); });
}

// A $ref is a URI: "%25" stands for "%".
std::string without_percents(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* const digits = text.data() + i + 1;
    const bool escape =
        text[i] == '%' && i + 2 < text.size() && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2;
    plain += escape ? static_cast<char>(byte) : text[i];
    i += escape ? 2 : 0;
  }
  return plain;
}

std::string joined(const std::string& path, const std::string& key) { return path.empty() ? key : path + "." + key; }

}  // namespace

// A schema that holds, too: where it is from, and the references that led to it. Or the list of a choice.
struct SchemaReader::Pending {
  const SchemaJson* schema;
  std::string path;
  SchemaList above;
  bool one_of = false;
};

std::string SchemaReader::label(const SchemaPlace& at) const {
  return at.path.empty() ? source_ : source_ + ": " + at.path;
}

void SchemaReader::refuse(const SchemaPlace& at, const std::string& why) const {
  throw_error(ExitCode::kBadInput, source_, (at.path.empty() ? "the schema" : at.path) + " " + why);
}

void SchemaReader::check_keywords(const SchemaPlace& at) const {
  for (const auto& item : at.all.front()->items()) {
    const std::string_view key = item.key();
    if (!is_annotation(key) && !is_keyword(key)) {
      refuse(at, "has the keyword " + shown(item.key()) + ", which is not supported");
    }
  }
}

const SchemaJson& SchemaReader::target(const SchemaPlace& at, const SchemaJson& ref) const {
  if (!ref.is_string()) refuse(at, "has a $ref that is not text");
  const std::string name = ref.get<std::string>();
  if (!name.starts_with('#')) {
    refuse(at, "has the $ref " + shown(name) + ": only references within the schema are supported");
  }
  try {
    return root_.at(SchemaJson::json_pointer(without_percents(name.substr(1))));
  } catch (const SchemaJson::exception&) {
    refuse(at, "has the $ref " + shown(name) + ", which does not resolve");
  }
}

bool SchemaReader::follow(SchemaPlace* at) const {
  bool followed = false;
  SchemaList all;
  for (const SchemaJson* schema : at->all) {
    SchemaList seen;
    while (has_alone(*schema, "$ref")) {
      if (contains(seen, schema)) refuse(*at, "has a $ref that refers to itself");
      seen.push_back(schema);
      const SchemaJson& ref = (*schema)["$ref"];
      schema = &target(*at, ref);
      followed = true;
      if (at->all.size() == 1) at->path = ref.get<std::string>();
    }
    if (!contains(all, schema)) all.push_back(schema);
  }
  at->all = std::move(all);
  return followed;
}

const SchemaJson* SchemaReader::lone_any_of(const SchemaPlace& at) const {
  if (at.all.size() != 1 || !has_alone(*at.all.front(), "anyOf")) return nullptr;
  return &(*at.all.front())["anyOf"];
}

bool SchemaReader::composed(const SchemaPlace& at) const {
  return std::any_of(at.all.begin(), at.all.end(), [](const SchemaJson* schema) {
    return schema->is_object() && std::any_of(kComposers.begin(), kComposers.end(),
                                              [schema](std::string_view key) { return schema->contains(key); });
  });
}

std::vector<SchemaPlace> SchemaReader::plain_places(const SchemaPlace& at) const {
  std::vector<Pending> pending;
  for (const SchemaJson* const schema : at.all) pending.push_back({schema, at.path, {}});
  std::reverse(pending.begin(), pending.end());
  Places places;
  expand({.all = {}, .path = at.path, .needed = at.needed}, std::move(pending), {}, &places);
  return places;
}

// Takes the pending schemas, the last one first. Their alternatives wait until all others are known.
void SchemaReader::expand(SchemaPlace at, std::vector<Pending> pending, std::vector<Pending> choices,
                          Places* out) const {
  while (!pending.empty()) {
    const Pending one = std::move(pending.back());
    pending.pop_back();
    const SchemaJson& schema = *one.schema;
    const SchemaPlace here{.all = {one.schema}, .path = one.path};
    if (schema.is_boolean() && !schema.get<bool>()) return;
    if (schema.is_boolean() || contains(at.all, one.schema)) continue;
    if (!schema.is_object()) refuse(here, "is " + shown(schema) + ", not a schema");
    check_keywords(here);
    at.all.push_back(one.schema);
    SchemaList above = one.above;
    above.push_back(one.schema);
    for (const char* const key : {"anyOf", "oneOf", "allOf"}) {
      const auto list = schema.find(key);
      if (list == schema.end()) continue;
      if (!list->is_array() || list->empty())
        refuse(here, str("has the ", key, " ", shown(*list), ", not a list of schemas"));
      if (std::string_view(key) != "allOf") {
        choices.push_back({&*list, joined(one.path, key), above, std::string_view(key) == "oneOf"});
        continue;
      }
      for (size_t i = list->size(); i > 0; --i) {
        pending.push_back({&(*list)[i - 1], joined(one.path, str("allOf[", i - 1, "]")), above});
      }
    }
    if (const auto ref = schema.find("$ref"); ref != schema.end()) {
      const SchemaJson& to = target(here, *ref);
      if (contains(above, &to)) refuse(here, "has a $ref that refers to itself");
      pending.push_back({&to, ref->get<std::string>(), above});
    }
  }
  if (!choices.empty()) return choose(at, std::move(choices), out);
  out->push_back(std::move(at));
  if (out->size() > kMaxPlaces) refuse(out->back(), str("has more than ", kMaxPlaces, " combinations of schemas"));
}

void SchemaReader::choose(const SchemaPlace& at, std::vector<Pending> choices, Places* out) const {
  const Pending choice = std::move(choices.back());
  choices.pop_back();
  std::vector<Places> branches;
  for (size_t i = 0; i < choice.schema->size(); ++i) {
    const std::string path = str(choice.path, "[", i, "]");
    expand({.all = at.all, .path = path, .needed = at.needed}, {{&(*choice.schema)[i], path, choice.above}}, choices,
           &branches.emplace_back());
  }
  for (size_t i = 0; choice.one_of && i < branches.size(); ++i) {
    for (size_t j = 0; j < branches.size(); ++j) {
      for (SchemaPlace& first : branches[i]) {
        for (const SchemaPlace& second : branches[j]) {
          if (i == j || excludes(&first, second)) continue;
          refuse(at, str("has a oneOf whose schemas ", std::min(i, j), " and ", std::max(i, j),
                         " may both hold, which is not supported: use anyOf, or a property with a const in each"));
        }
      }
    }
  }
  for (Places& branch : branches) std::move(branch.begin(), branch.end(), std::back_inserter(*out));
}

// ---- oneOf ----------------------------------------------------------------------------------------------------------

namespace {

bool disjoint(const std::vector<SchemaJson>& a, const std::vector<SchemaJson>& b) {
  return std::none_of(a.begin(), a.end(), [&b](const SchemaJson& one) { return has_value(b, one); });
}

}  // namespace

bool SchemaReader::excludes(SchemaPlace* first, const SchemaPlace& second) const {
  const JsonTypes common = types(*first) & named_types(second);
  if (common == 0) return true;
  const auto values_of_first = values(*first), values_of_second = values(second);
  if (values_of_first && values_of_second && disjoint(*values_of_first, *values_of_second)) return true;
  return common == kObjectType && !values_of_first && objects_exclude(first, second);
}

// A property that tells the two apart by its value is needed in any case, as clients look for it.
bool SchemaReader::objects_exclude(SchemaPlace* first, const SchemaPlace& second) const {
  const std::vector<std::string> known = names(*first), have = required(*first);
  for (const std::string& name : known) {
    SchemaPlace one = member(*first, name), other = member(second, name);
    follow(&one);
    follow(&other);
    if (composed(one) || composed(other)) continue;
    const auto values_of_one = values(one), values_of_other = values(other);
    if (!values_of_one || !values_of_other || !disjoint(*values_of_one, *values_of_other)) continue;
    if (!contains(have, name)) first->needed.push_back(name);
    return true;
  }
  if (!other_member(*first)) {
    for (const std::string& name : required(second)) {
      if (!contains(known, name)) return true;
    }
  }
  return std::any_of(have.begin(), have.end(), [&](const std::string& name) {
    const SchemaPlace place = member(second, name);
    return std::any_of(place.all.begin(), place.all.end(), [](const SchemaJson* s) { return *s == false; });
  });
}

}  // namespace headrace
