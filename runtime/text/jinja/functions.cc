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

Value make_dict(Runtime& runtime, const Arguments& arguments) {
  Dict out;
  if (arguments.positional.size() > 1) runtime.fail("dict has 1 parameter and named ones");
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].dict()) runtime.fail("dict needs a dict");
    out.entries = arguments.positional[0].dict()->entries;
  }
  for (const auto& [name, value] : arguments.named) {
    const auto at = std::find_if(out.entries.begin(), out.entries.end(), [&, key = name](const auto& entry) {
      return entry.first.text() && entry.first.text()->bytes() == key;
    });
    if (at == out.entries.end()) {
      out.entries.emplace_back(Value::text(name), value);
    } else {
      at->second = value;
    }
  }
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
  runtime.fail(str("the template refuses the messages: ", printed(runtime, *values[0]).bytes()));
}

Value strftime_now(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "strftime_now", {"format"}, 1);
  const Text& format = runtime.need_text(*values[0], "strftime_now");
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

bool same(Runtime&, const Value& value, const Value* other) {
  return std::string_view(type_name(value)) == type_name(*other) && equal(value, *other);
}

template <int divisor, int remainder>
bool has_remainder(Runtime& runtime, const Value& value, const Value*) {
  return runtime.need_whole(value, "even and odd") % divisor * (runtime.need_whole(value, "odd") < 0 ? -1 : 1) ==
         remainder;
}

bool divisible(Runtime& runtime, const Value& value, const Value* other) {
  const int64_t divisor = runtime.need_whole(*other, "divisibleby");
  if (divisor == 0) runtime.fail("a division by zero");
  return divisor == -1 || runtime.need_whole(value, "divisibleby") % divisor == 0;
}

const Test kTests[] = {
    {"boolean", [](Runtime&, const Value& v, const Value*) { return v.boolean() != nullptr; }},
    {"callable", [](Runtime&, const Value& v, const Value*) { return v.callable() != nullptr; }},
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
    {"filter", [](Runtime&, const Value& v, const Value*) { return v.text() && is_filter(v.text()->bytes()); }},
    {"test", [](Runtime&, const Value& v, const Value*) { return v.text() && is_test(v.text()->bytes()); }},
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
