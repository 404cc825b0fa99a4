// Operators, subscripts, attributes and iteration on values. Each fails at the runtime's line if the types have none.
#pragma once

#include <string_view>
#include <vector>

#include "runtime/text/jinja/callable.h"
#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

Value binary(Runtime& runtime, std::string_view name, const Value& a, const Value& b);   // + - * / // % ** ~
Value unary(Runtime& runtime, std::string_view name, const Value& value);                // + -
bool compared(Runtime& runtime, std::string_view name, const Value& a, const Value& b);  // == < in "not in" …

// value.name: a method or an attribute before a key. Undefined if there is neither.
Value attribute(Runtime& runtime, const Value& value, std::string_view name);
// value[key]: a key before a method. Undefined if there is neither.
Value item(Runtime& runtime, const Value& value, const Value& key);
Value sliced(Runtime& runtime, const Value& value, const Value& start, const Value& stop, const Value& step);
// What a loop over the value yields: items, keys, characters; nothing of undefined.
std::vector<Value> items_of(Runtime& runtime, const Value& value);
// Its length; false if it has none.
bool length_of(const Value& value, int64_t* out);
// "%s has %d" % values
Value formatted(Runtime& runtime, const Text& format, const std::vector<Value>& values);

// "{} has {n}".format(…)
Value braces_formatted(Runtime& runtime, const Text& format, const Arguments& arguments);

// loop.index and so on (call.cc).
Value loop_attribute(Runtime& runtime, const Value& loop, std::string_view name);

}  // namespace headrace::jinja
