// The body of a JSON string by several rules at once. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/grammar/grammar.h"

namespace headrace {

// Patterns that a text matches and others that it does not, and its length in characters (-1: any).
struct TextRules {
  std::vector<std::string> with{}, without{};
  int32_t min = 0, max = -1;
  bool any() const { return !with.empty() || !without.empty() || min > 0 || max >= 0; }
};

constexpr size_t kMaxTextStates = size_t{1} << 15;  // of the automata that join rules; a schema's

// Throws Error(kBadInput) that names `source` and the pattern, or says that the rules need more than `states_left`.
int32_t text_body(Grammar* g, const TextRules& rules, const std::string& source, size_t* states_left, int32_t next);

}  // namespace headrace
