// Attributes, items, slices and iteration.
#include <algorithm>

#include "cache/base.h"
#include "runtime/text/jinja/callable.h"
#include "runtime/text/jinja/characters.h"
#include "runtime/text/jinja/methods.h"
#include "runtime/text/jinja/operations.h"

namespace headrace::jinja {

namespace {

// Where value[index] is, counted from the end if negative; false if outside.
bool place_of(int64_t index, size_t size, size_t* out) {
  const auto length = static_cast<int64_t>(size);
  if (index < -length || index >= length) return false;
  *out = static_cast<size_t>(index < 0 ? index + length : index);
  return true;
}

// The places that a slice selects, in order.
std::vector<size_t> places(Runtime& runtime, size_t size, const Value& start, const Value& stop, int64_t step) {
  const auto length = static_cast<int64_t>(size);
  const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? length : length - 1;
  const auto bound_of = [&](const Value& value, int64_t preset) {
    if (value.is_none()) return preset;
    const int64_t given = runtime.need_whole(value, "a slice");
    return std::clamp(given < 0 ? std::max(given, -length - 1) + length : given, low, high);
  };
  int64_t at = bound_of(start, step > 0 ? low : high);
  const int64_t end = bound_of(stop, step > 0 ? high : low);
  std::vector<size_t> out;
  for (; step > 0 ? at < end : at > end; at += step) {
    runtime.charge(1);
    out.push_back(static_cast<size_t>(at));
    if (step > 0 ? step >= end - at : step <= end - at) break;  // the next is outside, and might overflow
  }
  return out;
}

Value character(Runtime& runtime, const Text& text, int64_t index) {
  const std::vector<size_t> starts = runtime.character_starts(text.bytes());
  size_t at = 0;
  if (!place_of(index, starts.size() - 1, &at)) return Value::undefined(str("a str has no item ", index));
  return text.slice(starts[at], starts[at + 1]);
}

Value text_slice(Runtime& runtime, const Text& text, const Value& start, const Value& stop, int64_t step) {
  const std::vector<size_t> starts = runtime.character_starts(text.bytes());
  const std::vector<size_t> chosen = places(runtime, starts.size() - 1, start, stop, step);
  if (chosen.empty()) return Text();
  if (step == 1) return text.slice(starts[chosen.front()], starts[chosen.back() + 1]);
  Text out;
  for (size_t at : chosen) out.append(text.slice(starts[at], starts[at + 1]));
  return out;
}

}  // namespace

bool length_of(const Value& value, int64_t* out) {
  if (value.text()) {
    *out = static_cast<int64_t>(count_characters(value.text()->bytes()));
  } else if (value.list()) {
    *out = static_cast<int64_t>(value.list()->items.size());
  } else if (value.dict()) {
    *out = static_cast<int64_t>(value.dict()->entries.size());
  } else if (value.is_undefined()) {
    *out = 0;
  } else {
    return false;
  }
  return true;
}

std::vector<Value> items_of(Runtime& runtime, const Value& value) {
  std::vector<Value> out;
  if (value.text()) {
    const Text& text = *value.text();
    const std::vector<size_t> starts = runtime.character_starts(text.bytes());
    runtime.charge(8 * starts.size());
    for (size_t i = 0; i + 1 < starts.size(); ++i) out.push_back(text.slice(starts[i], starts[i + 1]));
  } else if (value.list()) {
    runtime.charge(value.list()->items.size());
    out = value.list()->items;
  } else if (value.dict()) {
    runtime.charge(value.dict()->entries.size());
    for (const auto& entry : value.dict()->entries) out.push_back(entry.first);
  } else if (!value.is_undefined()) {
    runtime.fail(str("a ", type_name(value), " has no items"));
  }
  return out;
}

Value attribute(Runtime& runtime, const Value& value, std::string_view name) {
  if (value.is_undefined()) runtime.fail(value.why_undefined());
  if (value.loop()) return loop_attribute(runtime, value, name);
  if (value.space()) {
    const Value* found = value.space()->find(name);
    if (found) return *found;
  }
  if (has_method(value, name)) {
    Callable method;
    method.name = std::string(name);
    method.receiver = value;
    return std::make_shared<const Callable>(std::move(method));
  }
  if (value.dict()) {
    runtime.charge(1 + value.dict()->entries.size() / 8);
    const Value* found = value.dict()->find(name);
    if (found) return *found;
  }
  return Value::undefined(str("a ", type_name(value), " has no '", name, "'"));
}

Value item(Runtime& runtime, const Value& value, const Value& key) {
  if (value.is_undefined()) runtime.fail(value.why_undefined());
  int64_t index = 0;
  size_t at = 0;
  if (value.dict()) {
    runtime.charge(value.dict()->entries.size() / 8 + key.weight());
    const Value* found = value.dict()->find(key);
    if (found) return *found;
  } else if (value.list() && key.whole(&index)) {
    if (place_of(index, value.list()->items.size(), &at)) return value.list()->items[at];
    return Value::undefined(str("a ", type_name(value), " has no item ", index));
  } else if (value.text() && key.whole(&index)) {
    return character(runtime, *value.text(), index);
  }
  if (key.text()) return attribute(runtime, value, key.text()->bytes());
  return Value::undefined(str("a ", type_name(value), " has no such item"));
}

Value sliced(Runtime& runtime, const Value& value, const Value& start, const Value& stop, const Value& step) {
  const int64_t stride = step.is_none() ? 1 : runtime.need_whole(step, "a slice");
  if (stride == 0) runtime.fail("a slice has steps of zero");
  if (value.text()) return text_slice(runtime, *value.text(), start, stop, stride);
  if (value.is_undefined()) runtime.fail(value.why_undefined());
  if (!value.list()) return Value::undefined(str("a ", type_name(value), " cannot be sliced"));
  std::vector<Value> out;
  for (size_t at : places(runtime, value.list()->items.size(), start, stop, stride))
    out.push_back(value.list()->items[at]);
  return value.list()->is_tuple ? runtime.tuple(std::move(out)) : runtime.list(std::move(out));
}

}  // namespace headrace::jinja
