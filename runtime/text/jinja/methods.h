// The methods of texts, lists and dictionaries that a template can call. Those that would change a value are refused,
// as in transformers' sandbox. Also the text operations that filters share with them.
#pragma once

#include <string_view>

#include "runtime/text/jinja/callable.h"
#include "runtime/text/jinja/runtime.h"

namespace headrace::jinja {

bool has_method(const Value& value, std::string_view name);
Value call_method(Runtime& runtime, const Value& receiver, std::string_view name, const Arguments& arguments);
// text_methods.cc, for call_method. `name` is one of text_has().
bool text_has(std::string_view name);
Value call_text_method(Runtime& runtime, const Text& text, const std::string& name, const Arguments& arguments);

enum class Side { kLeft, kRight, kBoth };
// Without characters of a set at its ends; white space if the set is null.
Text stripped(Runtime& runtime, const Text& text, Side side, const Text* set);
Text replaced(Runtime& runtime, const Text& text, const Text& from, const Text& to, int64_t most);  // most < 0: all
std::vector<Text> lines_of(Runtime& runtime, const Text& text, bool with_ends);
Text title_case(Runtime& runtime, const Text& text, bool after_spaces_only);
Text capitalized(const Text& text);
// [key, value] pairs as tuples.
Value pairs_of(Runtime& runtime, const Dict& dict);

}  // namespace headrace::jinja
