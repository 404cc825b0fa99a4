// The regular expressions of JSON Schema's `pattern`, as far as an automaton has them: characters, classes, groups,
// alternatives, repetitions, ^ and $ at the ends. Pure; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/grammar/grammar.h"

namespace headrace {

// Adds a JSON string's body that the expression matches somewhere, or as a whole between ^ and $. Throws
// Error(kBadInput) that names `source`, the expression and what it has that is not supported.
int32_t pattern_body(Grammar* g, std::string_view pattern, const std::string& source, int32_t next);

// A pattern without the (?=...) and (?!...) behind its ^, and these: each an expression that the text matches, too, or
// does not.
struct PatternParts {
  std::string rest;
  std::vector<std::string> with, without;
};
PatternParts pattern_parts(std::string_view pattern);

// The expression of a format. Its texts are a part of those that have the format; "": any text. None: unknown.
std::optional<std::string_view> format_pattern(std::string_view format);
// The names of these formats, for errors.
std::string format_names();

}  // namespace headrace
