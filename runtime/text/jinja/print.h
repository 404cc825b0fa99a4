// Values as text: as Python's str() and repr() print them, and as JSON. All keep the origin of texts within.
#pragma once

#include <string>

#include "runtime/text/jinja/runtime.h"
#include "runtime/text/jinja/value.h"

namespace headrace::jinja {

Text printed(Runtime& runtime, const Value& value);  // str(): of a text itself, of undefined nothing
Text printed_repr(Runtime& runtime, const Value& value);
std::string printed_real(double value);

struct JsonStyle {
  bool ascii = false;   // other characters as \uXXXX
  int64_t indent = -1;  // spaces a level; below 0: all on one line
  bool sort_keys = false;
  std::string item_separator = ", ", key_separator = ": ";
};
// As json.dumps() writes it. Fails at the runtime's line on what JSON has no form for.
Text json_text(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace headrace::jinja
