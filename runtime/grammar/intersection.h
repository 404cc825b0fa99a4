// What two grammars have in common, or one has and the other has not, as a finite automaton. For grammars that do not
// recur: bodies of strings, and numbers. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "runtime/grammar/grammar.h"

namespace headrace {

enum class Second { kHolds, kFails };

// Adds the texts of `first` that are texts of `second` (kHolds) or are not (kFails). Takes its states from
// `states_left`; none: they are not enough.
std::optional<int32_t> add_intersection(Grammar* g, const Grammar& first, const Grammar& second, Second how,
                                        size_t* states_left, int32_t next);

// Whether the grammar has this text.
bool has_text(const Grammar& grammar, std::string_view text);

}  // namespace headrace
