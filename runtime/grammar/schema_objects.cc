// Objects and lists of a JSON schema (schema_compiler.h).
#include <algorithm>
#include <bit>
#include <utility>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/grammar/intersection.h"
#include "runtime/grammar/schema_compiler.h"
#include "runtime/grammar/schema_keywords.h"

namespace headrace {
namespace {

constexpr size_t kMaxUnique = 8;  // values of a list in which none comes twice

std::string inside_quotes(const std::string& name) {
  const std::string text = SchemaJson(name).dump();
  return text.substr(1, text.size() - 2);
}

}  // namespace

// ---- lists ----------------------------------------------------------------------------------------------------------

int32_t SchemaCompiler::list(const SchemaPlace& at, int32_t next) {
  const int32_t min = reader_.most(at, "minItems", 0), max = reader_.least(at, "maxItems", -1);
  if (max >= 0 && max < min) return g_.split({});
  const SchemaList unique = reader_.each(at, "uniqueItems");
  const bool once = std::any_of(unique.begin(), unique.end(), [](const SchemaJson* flag) { return *flag != false; });
  if (once && (max < 0 || max > 1)) return unique_list(at, min, max, next);
  const size_t own = reader_.first_items(at);
  if (own == 0) return json_array(&g_, value_of(reader_.item(at, 0), kReturnNode), min, max, next);
  return tuple(at, max < 0 ? own : std::min(own, static_cast<size_t>(max)), min, max, next);
}

// The first `own` items have schemas of their own. Others follow where the schema says what they are, or must follow.
int32_t SchemaCompiler::tuple(const SchemaPlace& at, size_t own, int32_t min, int32_t max, int32_t next) {
  const auto count = static_cast<int32_t>(own);
  const int32_t close = g_.literal("]", next), end = json_space(&g_, close);
  int32_t later = end, first = close;
  if ((reader_.has_rest(at) || min > count) && (max < 0 || max > count)) {
    const int32_t rest = value_of(reader_.item(at, own), kReturnNode);
    later = g_.loop(g_.literal(",", json_space(&g_, rest)), std::max(min - count, 0), max < 0 ? -1 : max - count, end);
  }
  for (size_t i = own; i > 0; --i) {
    const int32_t item = value_of(reader_.item(at, i - 1), later);
    const bool optional = static_cast<int32_t>(i) > min;
    const int32_t behind_comma = g_.literal(",", json_space(&g_, item));
    later = optional ? g_.optional(behind_comma, end) : behind_comma;
    first = optional ? g_.optional(item, close) : item;
  }
  return g_.literal("[", json_space(&g_, first));
}

// One node for each set of values that a list has so far.
int32_t SchemaCompiler::unique_list(const SchemaPlace& at, int32_t min, int32_t max, int32_t next) {
  SchemaPlace item = reader_.item(at, 0);
  reader_.follow(&item);
  const auto values = reader_.composed(item) ? std::nullopt : reader_.values(item);
  if (!values || values->size() > kMaxUnique || reader_.first_items(at) > 0) {
    reader_.refuse(at, str("has the keyword \"uniqueItems\", which is supported only for an enum of at most ",
                           kMaxUnique, " values, or with a maxItems of 1"));
  }
  const int32_t close = g_.literal("]", next), end = json_space(&g_, close);
  std::vector<int32_t> nodes(size_t{1} << values->size());
  for (size_t had = nodes.size(); had > 0; --had) {
    const auto count = std::popcount(had - 1);
    std::vector<int32_t> choices;
    if (count >= min) choices.push_back(count == 0 ? close : end);
    for (size_t i = 0; i < values->size() && (max < 0 || count < max); ++i) {
      if (((had - 1) >> i & 1) != 0) continue;
      const int32_t value = g_.literal((*values)[i].dump(), nodes[(had - 1) | size_t{1} << i]);
      choices.push_back(count == 0 ? value : g_.literal(",", json_space(&g_, value)));
    }
    nodes[had - 1] = g_.split(choices);
  }
  return g_.literal("[", json_space(&g_, nodes[0]));
}

// ---- objects --------------------------------------------------------------------------------------------------------

// propertyNames of all schemas.
SchemaPlace SchemaCompiler::name_place(const SchemaPlace& at) const {
  SchemaPlace place{.all = reader_.each(at, "propertyNames"),
                    .path = str(at.path, at.path.empty() ? "" : ".", "propertyNames")};
  const std::vector<SchemaPlace> places = reader_.plain_places(place);
  if (places.size() != 1) reader_.refuse(place, "has alternatives, which are not supported for names");
  return places.front();
}

std::optional<std::vector<std::string>> SchemaCompiler::allowed_names(const SchemaPlace& at) const {
  const auto values = reader_.values(name_place(at));
  if (!values) return std::nullopt;
  std::vector<std::string> names;
  for (const SchemaJson& value : *values) {
    if (value.is_string()) names.push_back(value.get<std::string>());
  }
  return names;
}

std::vector<SchemaCompiler::Property> SchemaCompiler::properties(const SchemaPlace& at) {
  std::vector<std::string> names = reader_.names(at);
  const std::vector<std::string> required = reader_.required(at);
  const auto add = [&names](const std::vector<std::string>& more) {
    for (const std::string& name : more) {
      if (!contains(names, name)) names.push_back(name);
    }
  };
  const auto allowed = allowed_names(at);
  if (allowed && reader_.other_member(at)) add(*allowed);
  add(required);
  std::optional<Grammar> rule;
  if (const TextRules rules = text_rules(name_place(at)); rules.any()) {
    rule.emplace();
    rule->start = text_body(&*rule, rules, reader_.label(at), &states_left_, kReturnNode);
  }
  std::vector<Property> all;
  for (const std::string& name : names) {
    const bool may = (!allowed || contains(*allowed, name)) && (!rule || has_text(*rule, inside_quotes(name)));
    const bool needed = contains(required, name);
    if (!may && !needed) continue;
    const int32_t value = may ? value_of(reader_.member(at, name), kReturnNode) : g_.split({});
    all.push_back({name, g_.literal(SchemaJson(name).dump() + ":", json_space(&g_, value)), needed});
  }
  return all;
}

// A member of another name, up to kReturn; none: there are none. Its name has no escapes.
std::optional<int32_t> SchemaCompiler::other_member(const SchemaPlace& at, const std::vector<Property>& named) {
  const std::optional<SchemaPlace> place = reader_.other_member(at);
  if (!place || allowed_names(at)) return std::nullopt;
  const int32_t end = g_.literal("\":", json_space(&g_, value_of(*place, kReturnNode)));
  std::vector<std::string> names;
  for (const Property& p : named) names.push_back(inside_quotes(p.name));
  TextRules rules = text_rules(name_place(at));
  if (const auto pattern = reader_.name_pattern(at)) rules.with.push_back(*pattern);
  if (!rules.any()) return g_.literal("\"", json_other_name(&g_, names, end));
  if (names.empty()) return g_.literal("\"", text_body(&g_, rules, reader_.label(at), &states_left_, end));
  Grammar others, ruled, both;
  others.start = json_other_name(&others, names, kReturnNode);
  ruled.start = text_body(&ruled, rules, reader_.label(at), &states_left_, kReturnNode);
  const auto start = add_intersection(&both, ruled, others, Second::kHolds, &states_left_, kReturnNode);
  if (!start) reader_.refuse(at, "has too many rules for names");
  both.start = *start;
  return g_.literal("\"", g_.call(g_.append(both), end));
}

// minProperties and maxProperties. An object may have a name twice in its text, which a reader takes for one: so
// members are counted only where they are named.
SchemaCompiler::Counts SchemaCompiler::counts(const SchemaPlace& at, std::vector<Property>* all, bool others) const {
  const int32_t min = reader_.most(at, "minProperties", 0), max = reader_.least(at, "maxProperties", -1);
  const auto named = static_cast<int32_t>(all->size());
  const auto required =
      static_cast<int32_t>(std::count_if(all->begin(), all->end(), [](const Property& p) { return p.required; }));
  Counts counts{.some = min > required && min == 1, .max_others = max < 0 ? -1 : std::max(max - named, 0)};
  if (max >= 0 && max < named && max > required) {
    reader_.refuse(at, str("has the maxProperties ", max, " and ", named,
                           " properties, which is not supported: require as many, or name fewer"));
  }
  if (max >= 0 && max <= required) std::erase_if(*all, [](const Property& p) { return !p.required; });
  if (max >= 0 && max < required) counts.none = true;
  if (min <= required || min == 1) return counts;
  if (others || min < named) {
    reader_.refuse(at, str("has the minProperties ", min, ", which is supported only up to 1, the number of required ",
                           "properties, or that of all where no others may follow"));
  }
  if (min > named) counts.none = true;
  for (Property& p : *all) p.required = true;
  return counts;
}

int32_t SchemaCompiler::object(const SchemaPlace& at, int32_t next) {
  std::vector<Property> all = properties(at);
  const std::optional<int32_t> other = other_member(at, all);
  const Counts counts = this->counts(at, &all, other.has_value());
  if (counts.none) return g_.split({});
  const int32_t close = g_.literal("}", next), end = json_space(&g_, close);
  // What may follow the members so far: `first` if there are none.
  int32_t first = counts.some ? g_.split({}) : close, later = end;
  if (other && counts.max_others != 0) {
    const int32_t further = g_.literal(",", json_space(&g_, *other)), most = counts.max_others;
    later = g_.loop(further, 0, most, end);
    first = g_.optional(g_.call(*other, most < 0 ? later : g_.loop(further, 0, most - 1, end)), first);
  }
  for (size_t i = all.size(); i > 0; --i) {
    const int32_t member = g_.call(all[i - 1].member, later);
    const int32_t after_comma = g_.literal(",", json_space(&g_, member));
    first = all[i - 1].required ? member : g_.optional(member, first);
    later = all[i - 1].required ? after_comma : g_.optional(after_comma, later);
  }
  return g_.literal("{", json_space(&g_, first));
}

}  // namespace headrace
