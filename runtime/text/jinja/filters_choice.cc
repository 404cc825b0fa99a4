// Filters that apply a test, a filter or an attribute to every item.
#include <charconv>

#include "cache/base.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operations.h"

namespace headrace::jinja {

namespace {

// The arguments from `begin` on, behind a place for an item.
Arguments rest_of(const Arguments& arguments, size_t begin) {
  Arguments out;
  out.positional.emplace_back();
  for (size_t i = begin; i < arguments.positional.size(); ++i) out.positional.push_back(arguments.positional[i]);
  out.named = arguments.named;
  return out;
}

const Value& argument(const Runtime& runtime, const Arguments& arguments, size_t at, const char* filter) {
  if (at >= arguments.positional.size()) runtime.fail(str(filter, " needs ", at, " arguments or more"));
  return arguments.positional[at];
}

// With `by_attribute`, the first argument is a path and the test is of what it leads to. Without a test: of truth.
Value chosen(Runtime& runtime, const Arguments& arguments, const char* filter, bool by_attribute, bool wanted) {
  const Value& sequence = argument(runtime, arguments, 0, filter);
  const size_t test_at = by_attribute ? 2 : 1;
  const Value path = by_attribute ? argument(runtime, arguments, 1, filter) : Value();
  const bool has_test = arguments.positional.size() > test_at;
  const std::string test = has_test ? runtime.need_text(arguments.positional[test_at], filter).bytes() : "";
  Arguments inner = rest_of(arguments, test_at + 1);
  std::vector<Value> out;
  if (!truthy(sequence)) return runtime.list({});  // none, too
  for (const Value& value : items_of(runtime, sequence)) {
    inner.positional[0] = by_attribute ? attribute_path(runtime, value, path) : value;
    const bool holds = has_test ? apply_test(runtime, test, inner) : truthy(inner.positional[0]);
    if (holds == wanted) out.push_back(value);
  }
  return runtime.list(std::move(out));
}

Value select(Runtime& runtime, const Arguments& a) { return chosen(runtime, a, "select", false, true); }
Value reject(Runtime& runtime, const Arguments& a) { return chosen(runtime, a, "reject", false, false); }
Value selectattr(Runtime& runtime, const Arguments& a) { return chosen(runtime, a, "selectattr", true, true); }
Value rejectattr(Runtime& runtime, const Arguments& a) { return chosen(runtime, a, "rejectattr", true, false); }

Value map_attribute(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "map", {"value", "attribute", "default"}, 2);
  std::vector<Value> out;
  for (const Value& value : items_of(runtime, *values[0])) {
    out.push_back(attribute_path(runtime, value, *values[1]));
    if (out.back().is_undefined() && values[2]) out.back() = *values[2];
  }
  return runtime.list(std::move(out));
}

Value map(Runtime& runtime, const Arguments& arguments) {
  if (!truthy(argument(runtime, arguments, 0, "map"))) return runtime.list({});  // none, too
  for (const auto& named : arguments.named)
    if (named.first == "attribute") return map_attribute(runtime, arguments);
  const std::string filter = runtime.need_text(argument(runtime, arguments, 1, "map"), "map").bytes();
  Arguments inner = rest_of(arguments, 2);
  std::vector<Value> out;
  for (const Value& value : items_of(runtime, arguments.positional[0])) {
    inner.positional[0] = value;
    out.push_back(apply_filter(runtime, filter, inner));
  }
  return runtime.list(std::move(out));
}

Value attr(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "attr", {"value", "name"}, 2);
  const std::string& name = runtime.need_text(*values[1], "attr").bytes();
  if (values[0]->dict() && !has_method(*values[0], name)) return Value::undefined(str("a dict has no '", name, "'"));
  return attribute(runtime, *values[0], name);
}

// Items with one value of the attribute each, sorted by it, as (value, items).
Value groupby(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "groupby", {"value", "attribute"}, 2);
  Arguments order;
  order.positional = {*values[0]};
  order.named = {{"attribute", *values[1]}};
  const Value rows = apply_filter(runtime, "sort", order);
  std::vector<Value> out, group;
  Value group_key;
  const auto flush = [&] {
    if (!group.empty()) out.push_back(runtime.tuple({group_key, runtime.list(std::move(group))}));
    group.clear();
  };
  for (const Value& row : rows.list()->items) {
    const Value key = attribute_path(runtime, row, *values[1]);
    if (key.is_undefined() && rows.list()->items.size() > 1) runtime.fail(key.why_undefined());
    if (!group.empty() && !compared(runtime, "==", key, group_key)) flush();
    group_key = key;
    group.push_back(row);
  }
  flush();
  return runtime.list(std::move(out));
}

constexpr Filter kChoiceFilters[] = {{"select", select},         {"reject", reject}, {"selectattr", selectattr},
                                     {"rejectattr", rejectattr}, {"map", map},       {"attr", attr},
                                     {"groupby", groupby}};

}  // namespace

Value attribute_path(Runtime& runtime, const Value& value, const Value& path) {
  runtime.charge(path.weight());
  if (path.is_whole()) return item(runtime, value, path);
  const std::string& names = runtime.need_text(path, "attribute").bytes();
  Value found = value;
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string part = names.substr(begin, end - begin);
    int64_t index = 0;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool is_index = error == std::errc() && rest == part.data() + part.size() && part[0] != '-';
    found = item(runtime, found, is_index ? Value(index) : Value::text(part));
    begin = end + 1;
  }
  return found;
}

std::span<const Filter> choice_filters() { return kChoiceFilters; }

}  // namespace headrace::jinja
