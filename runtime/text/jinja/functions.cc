// Global functions, tests, and the search for filters.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/operations.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

constexpr int64_t kMaxRange = 100'000;

Value range(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "range", {"start", "stop", "step"}, 1);
  int64_t start = 0, stop = runtime.need_whole(*values[0], "range"), step = 1;
  if (values[1]) {
    start = stop;
    stop = runtime.need_whole(*values[1], "range");
  }
  if (values[2]) step = runtime.need_whole(*values[2], "range");
  if (step == 0) runtime.fail("range: the step is zero");
  std::vector<Value> out;
  for (int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<int64_t>(out.size()) == kMaxRange) runtime.fail(str("range: more than ", kMaxRange, " numbers"));
    out.push_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  return runtime.list(std::move(out));
}

void add_pairs(Runtime& runtime, const Value& pairs, Dict* out) {
  for (const Value& pair : items_of(runtime, pairs)) {
    const std::vector<Value> both = items_of(runtime, pair);
    if (both.size() != 2) runtime.fail("dict needs pairs");
    runtime.charge(1 + out->entries.size());
    for (const auto& entry : out->entries) runtime.charge(std::min(entry.first.weight(), both[0].weight()));
    out->set(both[0], both[1]);
  }
}

Value make_dict(Runtime& runtime, const Arguments& arguments) {
  Dict out;
  if (arguments.positional.size() > 1) runtime.fail("dict has 1 parameter and named ones");
  if (!arguments.positional.empty()) {
    const Value& from = arguments.positional[0];
    if (from.is_undefined()) runtime.fail(from.why_undefined());
    if (from.dict()) {
      runtime.charge(2 * from.dict()->entries.size());
      out.entries = from.dict()->entries;
    } else {
      add_pairs(runtime, from, &out);
    }
  }
  for (const auto& [name, value] : arguments.named) out.set(Value::text(name), value);
  return runtime.dict(std::move(out));
}

Value make_namespace(Runtime& runtime, const Arguments& arguments) {
  const Value dict = make_dict(runtime, arguments);
  auto out = std::make_shared<Namespace>();
  for (const auto& [key, value] : dict.dict()->entries)
    out->attributes.emplace_back(runtime.need_text(key, "namespace").bytes(), value);
  return out;
}

Value raise_exception(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "raise_exception", {"message"}, 1);
  constexpr size_t kShown = 2000;
  runtime.fail(str("the template refuses the messages: ", printed(runtime, *values[0]).bytes().substr(0, kShown)));
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "strftime_now", {"format"}, 1);
  const Text& format = runtime.need_text(*values[0], "strftime_now");
  runtime.charge(format.size());
  return Text(runtime.clock()(format.bytes()), format.has_messages() ? Origin::kMessage : Origin::kTemplate);
}

constexpr Filter kFunctions[] = {{"range", range},
                                 {"dict", make_dict},
                                 {"namespace", make_namespace},
                                 {"raise_exception", raise_exception},
                                 {"strftime_now", strftime_now}};

struct Test {
  std::string_view name;
  bool (*holds)(Runtime& runtime, const Value& value, const Value* other);
  bool needs_other = false;
};

template <bool wanted>
bool is_boolean(Runtime&, const Value& value, const Value*) {
  return value.boolean() && *value.boolean() == wanted;
}

bool is_sequence(Runtime&, const Value& value, const Value*) {
  return value.text() || value.list() || value.dict() || value.is_undefined();
}

bool same(Runtime& runtime, const Value& value, const Value* other) {
  return std::string_view(type_name(value)) == type_name(*other) && runtime.equal(value, *other);
}

template <int64_t divisor, int64_t remainder>
bool has_remainder(Runtime& runtime, const Value& value, const Value*) {
  if (value.text()) runtime.fail("a str is not even or odd");  // '%' would format it
  return runtime.equal(binary(runtime, "%", value, divisor), remainder);
}

bool divisible(Runtime& runtime, const Value& value, const Value* other) {
  if (value.text()) runtime.fail("a str is not divisible");
  return runtime.equal(binary(runtime, "%", value, *other), int64_t{0});
}

template <bool (*known)(std::string_view)>
bool names(Runtime& runtime, const Value& value, const Value*) {
  if (value.dict() || (value.list() && !value.list()->is_tuple))
    runtime.fail(str("a ", type_name(value), " cannot be a name"));
  return value.text() && known(value.text()->bytes());
}

const Test kTests[] = {
    {"boolean", [](Runtime&, const Value& v, const Value*) { return v.boolean() != nullptr; }},
    {"callable", [](Runtime&, const Value& v, const Value*) { return v.callable() || v.is_undefined(); }},
    {"defined", [](Runtime&, const Value& v, const Value*) { return !v.is_undefined(); }},
    {"undefined", [](Runtime&, const Value& v, const Value*) { return v.is_undefined(); }},
    {"none", [](Runtime&, const Value& v, const Value*) { return v.is_none(); }},
    {"true", is_boolean<true>},
    {"false", is_boolean<false>},
    {"integer", [](Runtime&, const Value& v, const Value*) { return v.integer() != nullptr; }},
    {"float", [](Runtime&, const Value& v, const Value*) { return v.real() != nullptr; }},
    {"number", [](Runtime&, const Value& v, const Value*) { return v.real() != nullptr || v.is_whole(); }},
    {"string", [](Runtime&, const Value& v, const Value*) { return v.text() != nullptr; }},
    {"mapping", [](Runtime&, const Value& v, const Value*) { return v.dict() != nullptr; }},
    {"sequence", is_sequence},
    {"iterable", is_sequence},
    {"escaped", [](Runtime&, const Value&, const Value*) { return false; }},
    {"lower", [](Runtime& r, const Value& v,
                 const Value*) { return all_of_class(printed(r, v).bytes(), CharacterClass::kLower); }},
    {"upper", [](Runtime& r, const Value& v,
                 const Value*) { return all_of_class(printed(r, v).bytes(), CharacterClass::kUpper); }},
    {"filter", names<is_filter>},
    {"test", names<is_test>},
    {"even", has_remainder<2, 0>},
    {"odd", has_remainder<2, 1>},
    {"divisibleby", divisible, true},
    {"sameas", same, true},
};

// Tests that are an operator.
constexpr std::pair<std::string_view, std::string_view> kComparisons[] = {
    {"eq", "=="},         {"==", "=="},      {"equalto", "=="}, {"ne", "!="}, {"!=", "!="}, {"lt", "<"},
    {"<", "<"},           {"lessthan", "<"}, {"le", "<="},      {"<=", "<="}, {"gt", ">"},  {">", ">"},
    {"greaterthan", ">"}, {"ge", ">="},      {">=", ">="},      {"in", "in"}};

std::string_view comparison_named(std::string_view name) {  // empty: none
  for (const auto& [test, operation] : kComparisons)
    if (test == name) return operation;
  return {};
}

Builtin filter_named(std::string_view name) {
  for (const std::span<const Filter> filters : {text_filters(), sequence_filters(), choice_filters()})
    if (const Filter* const filter = named(filters, name)) return filter->call;
  return nullptr;
}

}  // namespace

Builtin function_named(std::string_view name) {
  const Filter* const found = named(kFunctions, name);
  return found ? found->call : nullptr;
}

bool is_filter(std::string_view name) { return filter_named(name) != nullptr; }
bool is_test(std::string_view name) { return named(kTests, name) || !comparison_named(name).empty(); }

Value apply_filter(Runtime& runtime, std::string_view name, const Arguments& arguments) {
  const Builtin filter = filter_named(name);
  if (!filter) runtime.fail(str("the filter '", name, "' is unknown"));
  runtime.charge(1);
  return filter(runtime, arguments);
}

bool apply_test(Runtime& runtime, std::string_view name, const Arguments& arguments) {
  const Test* test = named(kTests, name);
  const std::string_view comparison = comparison_named(name);
  if (!test && comparison.empty()) runtime.fail(str("the test '", name, "' is unknown"));
  runtime.charge(1);
  const bool needs_other = !test || test->needs_other;
  const auto values = needs_other ? bound(runtime, arguments, name, {"value", "other"}, 2)
                                  : bound(runtime, arguments, name, {"value"}, 1);
  if (!test) return compared(runtime, comparison, *values[0], *values[1]);
  return test->holds(runtime, *values[0], needs_other ? values[1] : nullptr);
}

}  // namespace headrace::jinja
