// Filters of lists and dictionaries as a whole.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/builtins.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operations.h"
#include "runtime/text/jinja/print.h"

namespace headrace::jinja {

namespace {

const Value& only(Runtime& runtime, const Arguments& arguments, std::string_view name) {
  return *bound(runtime, arguments, name, {"value"}, 1)[0];
}

Value length(Runtime& runtime, const Arguments& arguments) {
  const Value& value = only(runtime, arguments, "length");
  int64_t out = 0;
  if (value.text()) runtime.charge_bytes(value.text()->size());
  if (!length_of(value, &out)) runtime.fail(str("a ", type_name(value), " has no length"));
  return out;
}

Value first(Runtime& runtime, const Arguments& arguments) {
  const Value& value = only(runtime, arguments, "first");
  if (value.text() || value.list()) return item(runtime, value, int64_t{0});
  const std::vector<Value> items = items_of(runtime, value);
  return items.empty() ? Value::undefined("there is no first item") : items.front();
}

Value last(Runtime& runtime, const Arguments& arguments) {
  const Value& value = only(runtime, arguments, "last");
  if (value.text() || value.list()) return item(runtime, value, int64_t{-1});
  const std::vector<Value> items = items_of(runtime, value);
  return items.empty() ? Value::undefined("there is no last item") : items.back();
}

Value list(Runtime& runtime, const Arguments& arguments) {
  return runtime.list(items_of(runtime, only(runtime, arguments, "list")));
}

Value items(Runtime& runtime, const Arguments& arguments) {
  const Value& value = only(runtime, arguments, "items");
  if (value.is_undefined()) return runtime.list({});
  if (!value.dict()) runtime.fail(str("items needs a dict, not a ", type_name(value)));
  return pairs_of(runtime, *value.dict());
}

Value reverse(Runtime& runtime, const Arguments& arguments) {
  const Value& value = only(runtime, arguments, "reverse");
  if (value.text()) return sliced(runtime, value, None(), None(), int64_t{-1});
  std::vector<Value> out = items_of(runtime, value);
  std::reverse(out.begin(), out.end());
  return runtime.list(std::move(out));
}

Value join(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "join", {"value", "d", "attribute"}, 1);
  const Text separator = values[1] ? printed(runtime, *values[1]) : Text();
  Text out;
  bool is_first = true;
  for (const Value& value : items_of(runtime, *values[0])) {
    const Text part = printed(runtime, values[2] ? attribute_path(runtime, value, *values[2]) : value);
    runtime.charge_bytes(part.size() + separator.size());
    if (!is_first) out.append(separator);
    is_first = false;
    out.append(part);
  }
  return runtime.text(std::move(out));
}

// A text without regard to case, unless it counts.
Value folded(Runtime& runtime, const Value& value, const Value* cased) {
  if (!value.text() || (cased && truthy(*cased))) return value;
  runtime.charge(value.weight());
  return value.text()->mapped(lower);
}

// What two values are compared by: an attribute, or the value.
Value sort_key(Runtime& runtime, const Value& value, const Value* path, const Value* cased) {
  return folded(runtime, path && !path->is_none() ? attribute_path(runtime, value, *path) : value, cased);
}

// Of sort: of several attributes, "a,b", in turn. Undefined ones are equal.
Value sort_keys(Runtime& runtime, const Value& value, const Value* path, const Value* cased) {
  if (!path || !path->text()) return sort_key(runtime, value, path, cased);
  const std::string& names = path->text()->bytes();
  std::vector<Value> keys;
  for (size_t begin = 0, end = 0; begin <= names.size(); begin = end + 1) {
    end = std::min(names.find(',', begin), names.size());
    const Value one = Value::text(names.substr(begin, end - begin));
    keys.push_back(folded(runtime, attribute_path(runtime, value, one), cased));
  }
  return runtime.list(std::move(keys));
}

bool goes_before(Runtime& runtime, const Value& a, const Value& b) {
  runtime.charge(std::min(a.weight(), b.weight()));
  int order = 0;
  if (!compare(a, b, &order)) runtime.fail(str("a ", type_name(a), " and a ", type_name(b), " have no order"));
  return order < 0;
}

struct Keyed {
  Value key, value;
};

// Stable, also in reverse.
Value sorted(Runtime& runtime, std::vector<Keyed> rows, bool reversed) {
  for (size_t i = 1; i < rows.size(); ++i)  // one type each: an order that std::stable_sort can rely on
    goes_before(runtime, rows[0].key, rows[i].key);
  std::stable_sort(rows.begin(), rows.end(), [&](const Keyed& a, const Keyed& b) {
    return reversed ? goes_before(runtime, b.key, a.key) : goes_before(runtime, a.key, b.key);
  });
  std::vector<Value> out;
  for (Keyed& row : rows) out.push_back(std::move(row.value));
  return runtime.list(std::move(out));
}

Value sort(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "sort", {"value", "reverse", "case_sensitive", "attribute"}, 1);
  std::vector<Keyed> rows;
  for (const Value& value : items_of(runtime, *values[0]))
    rows.push_back({sort_keys(runtime, value, values[3], values[2]), value});
  return sorted(runtime, std::move(rows), values[1] && truthy(*values[1]));
}

Value dictsort(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "dictsort", {"value", "case_sensitive", "by", "reverse"}, 1);
  const std::string by = values[2] ? runtime.need_text(*values[2], "dictsort").bytes() : "key";
  if (by != "key" && by != "value") runtime.fail(str("dictsort: by '", by, "' is not key or value"));
  if (!values[0]->dict()) runtime.fail(str("dictsort needs a dict, not a ", type_name(*values[0])));
  std::vector<Keyed> rows;
  for (const auto& [key, value] : values[0]->dict()->entries)
    rows.push_back({sort_key(runtime, by == "key" ? key : value, nullptr, values[1]), runtime.tuple({key, value})});
  return sorted(runtime, std::move(rows), values[3] && truthy(*values[3]));
}

Value unique(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "unique", {"value", "case_sensitive", "attribute"}, 1);
  std::vector<Value> keys, out;
  for (const Value& value : items_of(runtime, *values[0])) {
    const Value key = sort_key(runtime, value, values[2], values[1]);
    if (key.dict() || (key.list() && !key.list()->is_tuple))
      runtime.fail(str("unique: a ", type_name(key), " cannot be compared"));
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& other) { return runtime.equal(other, key); })) continue;
    keys.push_back(key);
    out.push_back(value);
  }
  return runtime.list(std::move(out));
}

Value extreme(Runtime& runtime, const Arguments& arguments, const char* name, bool least) {
  const auto values = bound(runtime, arguments, name, {"value", "case_sensitive", "attribute"}, 1);
  Value best = Value::undefined(str(name, " of no items")), best_key;
  bool is_first = true;
  for (const Value& value : items_of(runtime, *values[0])) {
    const Value key = sort_key(runtime, value, values[2], values[1]);
    const bool better = is_first || (least ? goes_before(runtime, key, best_key) : goes_before(runtime, best_key, key));
    is_first = false;
    if (!better) continue;
    best = value;
    best_key = key;
  }
  return best;
}

Value least(Runtime& runtime, const Arguments& arguments) { return extreme(runtime, arguments, "min", true); }
Value most(Runtime& runtime, const Arguments& arguments) { return extreme(runtime, arguments, "max", false); }

Value sum(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "sum", {"value", "attribute", "start"}, 1);
  Value out = values[2] ? *values[2] : Value(int64_t{0});
  const bool by_path = values[1] && !values[1]->is_none();
  for (const Value& value : items_of(runtime, *values[0]))
    out = binary(runtime, "+", out, by_path ? attribute_path(runtime, value, *values[1]) : value);
  return out;
}

Value batch(Runtime& runtime, const Arguments& arguments) {
  const auto values = bound(runtime, arguments, "batch", {"value", "linecount", "fill_with"}, 2);
  const int64_t size = runtime.need_whole(*values[1], "batch");
  if (size < 1 || size > 1'000'000) runtime.fail(str("batch: ", size, " is not a number of items"));
  std::vector<Value> out, row;
  const auto flush = [&] {
    out.push_back(runtime.list(std::move(row)));
    row.clear();
  };
  for (const Value& value : items_of(runtime, *values[0])) {
    row.push_back(value);
    if (static_cast<int64_t>(row.size()) == size) flush();
  }
  if (!row.empty()) {
    if (values[2]) {
      runtime.charge(static_cast<uint64_t>(size));
      row.resize(static_cast<size_t>(size), *values[2]);
    }
    flush();
  }
  return runtime.list(std::move(out));
}

constexpr Filter kSequenceFilters[] = {
    {"length", length}, {"count", length},    {"first", first}, {"last", last}, {"list", list},
    {"items", items},   {"reverse", reverse}, {"join", join},   {"sort", sort}, {"dictsort", dictsort},
    {"unique", unique}, {"min", least},       {"max", most},    {"sum", sum},   {"batch", batch},
};

}  // namespace

std::span<const Filter> sequence_filters() { return kSequenceFilters; }

}  // namespace headrace::jinja
