// The filters, tests and functions that every template has, by name. Tables: immutable, any thread.
#pragma once

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "runtime/text/jinja/callable.h"
#include "runtime/text/jinja/runtime.h"

namespace headrace::jinja {

// value|name(…) and "value is name(…)": the value is the first argument. Fail at the runtime's line on an unknown name.
Value apply_filter(Runtime& runtime, std::string_view name, const Arguments& arguments);
bool apply_test(Runtime& runtime, std::string_view name, const Arguments& arguments);
bool is_filter(std::string_view name);
bool is_test(std::string_view name);
Builtin function_named(std::string_view name);  // null: none

// The row of a table with this name; null if there is none.
template <typename Table>
auto named(const Table& table, std::string_view name) {
  const auto at = std::find_if(std::begin(table), std::end(table), [&](const auto& row) { return row.name == name; });
  return at == std::end(table) ? nullptr : &*at;
}

struct Filter {
  std::string_view name;
  Builtin call;
};
// The parts of the table of filters.
std::span<const Filter> text_filters();      // filters_text.cc
std::span<const Filter> sequence_filters();  // filters_sequence.cc
std::span<const Filter> choice_filters();    // filters_choice.cc: those that select or map by a test or attribute

// value.a.b.0, as the filters' `attribute` has it.
Value attribute_path(Runtime& runtime, const Value& value, const Value& path);

}  // namespace headrace::jinja
