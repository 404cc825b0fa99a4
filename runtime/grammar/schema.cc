#include "runtime/grammar/schema.h"

#include <utility>
#include <vector>

#include "cache/base.h"
#include "runtime/base/json_file.h"
#include "runtime/grammar/intersection.h"
#include "runtime/grammar/pattern.h"
#include "runtime/grammar/schema_compiler.h"
#include "runtime/grammar/schema_keywords.h"

namespace headrace {
namespace {

constexpr int kMaxDepth = 256;
constexpr size_t kMaxNodes = size_t{1} << 20;
constexpr int32_t kMaxSpaceBefore = 4;  // of an answer: what models write behind their thinking

}  // namespace

Grammar SchemaCompiler::grammar() {
  const SchemaPlace root{.all = {&reader_.root()}};
  const int32_t space = g_.bytes(byte_set(" \t\r\n"), kReturnNode);
  const int32_t value = value_of(root, kReturnNode);
  g_.start = g_.loop(space, 0, kMaxSpaceBefore, value);
  if (recurs_at_once(g_)) reader_.refuse(root, "has a $ref that refers to itself");
  if (!drop_endless(&g_)) reader_.refuse(root, "allows no finite answer");
  return std::move(g_);
}

int32_t SchemaCompiler::value_of(SchemaPlace at, int32_t next) {
  if (g_.nodes.size() > kMaxNodes) reader_.refuse(at, "makes the grammar too large");
  if (depth_ == kMaxDepth) reader_.refuse(at, str("is more than ", kMaxDepth, " schemas deep"));
  ++depth_;
  const bool followed = reader_.follow(&at);
  int32_t node = next;
  if (!followed && !reader_.composed(at)) {
    node = one_value(at, next);
  } else {
    const auto [rule, added] = rules_.try_emplace(at.all, -1);
    if (added) {
      const int32_t body = rule->second = g_.later();
      g_.settle(body, one_value(at, kReturnNode));
    }
    node = g_.call(rules_.at(at.all), next);
  }
  --depth_;
  return node;
}

int32_t SchemaCompiler::one_value(const SchemaPlace& at, int32_t next) {
  std::vector<int32_t> choices;
  if (const SchemaJson* const list = reader_.lone_any_of(at)) {
    if (!list->is_array() || list->empty()) {
      reader_.refuse(at, "has the anyOf " + shown(*list) + ", not a list of schemas");
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const std::string path = str(at.path, at.path.empty() ? "" : ".", "anyOf[", i, "]");
      choices.push_back(value_of({.all = {&(*list)[i]}, .path = path}, next));
    }
  } else {
    for (const SchemaPlace& place : reader_.plain_places(at)) choices.push_back(plain(place, next));
  }
  return g_.split(choices);
}

int32_t SchemaCompiler::plain(const SchemaPlace& at, int32_t next) {
  if (const auto values = reader_.values(at)) return constant(at, *values, next);
  return typed(at, reader_.types(at), next);
}

// Beside other keywords, those values that the grammar of these has.
int32_t SchemaCompiler::constant(const SchemaPlace& at, const std::vector<SchemaJson>& values, int32_t next) {
  std::optional<Grammar> rest;
  if (reader_.asks_for_more(at)) {
    SchemaCompiler more(reader_);
    more.g_.start = more.typed(at, kAllTypes, kReturnNode);
    if (!drop_endless(&more.g_)) return g_.split({});
    rest = std::move(more.g_);
  }
  std::vector<int32_t> choices;
  for (const SchemaJson& value : values) {
    const std::string text = value.dump();
    if (!rest || has_text(*rest, text)) choices.push_back(g_.literal(text, next));
  }
  return g_.split(choices);
}

AnyJson SchemaCompiler::any() {
  if (!any_) any_ = json_any(&g_);
  return *any_;
}

int32_t SchemaCompiler::typed(const SchemaPlace& at, JsonTypes types, int32_t next) {
  if (types == kAllTypes && !reader_.asks_for_more(at)) return g_.call(any().value, next);
  std::vector<int32_t> choices;
  if ((types & kStringType) != 0) choices.push_back(text(at, next));
  if ((types & kNumberTypes) != 0) choices.push_back(number(at, (types & kFractionType) == 0, next));
  if ((types & kArrayType) != 0) choices.push_back(list(at, next));
  if ((types & kObjectType) != 0) choices.push_back(object(at, next));
  if ((types & kBooleanType) != 0) choices.push_back(g_.split({g_.literal("true", next), g_.literal("false", next)}));
  if ((types & kNullType) != 0) choices.push_back(g_.literal("null", next));
  return g_.split(choices);
}

TextRules SchemaCompiler::text_rules(const SchemaPlace& at) const {
  TextRules rules{.with = reader_.texts(at, "pattern"),
                  .min = reader_.most(at, "minLength", 0),
                  .max = reader_.least(at, "maxLength", -1)};
  const bool patterns = !rules.with.empty();
  for (const std::string& format : reader_.texts(at, "format")) {
    const std::optional<std::string_view> expression = format_pattern(format);
    if (!expression && !patterns) {  // beside a pattern it says what that is for
      reader_.refuse(at,
                     "has the format " + shown(format) + ", which is not supported: only " + format_names() + " are");
    }
    if (expression && !expression->empty()) rules.with.emplace_back(*expression);
  }
  return rules;
}

int32_t SchemaCompiler::text(const SchemaPlace& at, int32_t next) {
  const TextRules rules = text_rules(at);
  if (rules.with.empty()) return json_string(&g_, rules.min, rules.max, next);
  return g_.literal("\"", text_body(&g_, rules, reader_.label(at), &states_left_, g_.literal("\"", next)));
}

int32_t SchemaCompiler::number(const SchemaPlace& at, bool whole, int32_t next) {
  const NumberBounds bounds = reader_.bounds(at);
  const std::vector<std::string> factors = reader_.factors(at);
  Grammar* g = &g_;
  Grammar joined;
  if (!factors.empty()) g = &joined;
  const int32_t end = factors.empty() ? next : kReturnNode;
  const std::optional<int32_t> node = whole ? json_integer(g, bounds, end) : json_number(g, bounds, end);
  if (!node) return g_.split({});
  if (factors.empty()) return *node;
  joined.start = *node;
  for (const std::string& factor : factors) {
    Grammar multiple, both;
    const std::optional<int32_t> start = json_multiple(&multiple, factor, whole, kReturnNode);
    if (!start) reader_.refuse(at, "has the multipleOf " + factor + ", which has too many digits to be supported");
    multiple.start = *start;
    const std::optional<int32_t> all =
        add_intersection(&both, joined, multiple, Second::kHolds, &states_left_, kReturnNode);
    if (!all) reader_.refuse(at, "has the multipleOf " + factor + ", which is too large beside the bounds");
    both.start = *all;
    drop_endless(&both);
    joined = std::move(both);
  }
  return g_.call(g_.append(joined), next);
}

std::shared_ptr<const Grammar> schema_grammar(std::string_view json, const std::string& source) {
  if (json.size() > kMaxSchemaBytes) {
    throw_error(ExitCode::kBadInput, source,
                str("has ", json.size(), " bytes: a schema has at most ", kMaxSchemaBytes));
  }
  const SchemaJson root = parse_ordered_json(json, source);
  const SchemaReader reader(root, source);
  Grammar grammar = SchemaCompiler(reader).grammar();
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
