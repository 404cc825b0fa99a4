// Whether a grammar has a text.
#pragma once

#include <string>
#include <string_view>

#include "runtime/grammar/automaton.h"
#include "runtime/grammar/schema.h"

namespace headrace::testing {

inline bool accepts(const Grammar& grammar, std::string_view text) {
  Automaton automaton(grammar);
  return automaton.complete(automaton.after(automaton.start(), text));
}

inline bool schema_accepts(const std::string& schema, std::string_view text) {
  return accepts(*schema_grammar(schema, "schema.json"), text);
}

}  // namespace headrace::testing
