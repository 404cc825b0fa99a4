// The parts of JSON text as nodes of a grammar: space, strings, numbers, any value. Each function adds nodes and
// returns the first; `next` is what follows. Pure but for the grammar; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/grammar/grammar.h"

namespace headrace {

// What stands between the tokens of JSON: nothing, a space, or a line break and its indentation.
int32_t json_space(Grammar* g, int32_t next);

// A set of characters: ASCII ones, others by name, and whether all others are in it.
struct CharSet {
  std::bitset<128> ascii;
  std::u32string named;  // beyond ASCII
  bool others = false;   // all beyond ASCII
  void add(char32_t c);
  void add_range(char first, char last);
  static CharSet any();
};
// A character as a JSON string has it: itself, or escaped where it must be.
int32_t json_char(Grammar* g, const CharSet& set, int32_t next);
// Any character of a JSON string, also as an escape that need not be one. Of \u escapes those of one unit.
int32_t json_any_char(Grammar* g, int32_t next);
// A JSON string of `min` to `max` characters (-1: any number).
int32_t json_string(Grammar* g, int32_t min, int32_t max, int32_t next);

// The rest of a member's name without escapes, up to but not including its closing quote, that is none of `names`;
// these are as in JSON.
int32_t json_other_name(Grammar* g, const std::vector<std::string>& names, int32_t next);

// Bounds as decimal numbers without exponent: "-12.5"; none: unbounded.
struct NumberBounds {
  struct Bound {
    std::string digits;
    bool exclusive = false;
  };
  std::optional<Bound> low, high;
  bool any() const { return low || high; }
  void narrow_low(Bound bound);  // to the greater of the two
  void narrow_high(Bound bound);
};
// With bounds there are no exponents. None: no number is within them.
std::optional<int32_t> json_integer(Grammar* g, const NumberBounds& bounds, int32_t next);
std::optional<int32_t> json_number(Grammar* g, const NumberBounds& bounds, int32_t next);
// Multiples of `factor`, a decimal number above 0, without exponent and of any length. None: the factor has too many
// digits.
std::optional<int32_t> json_multiple(Grammar* g, std::string_view factor, bool whole, int32_t next);

// A list of `min` to `max` (-1: any number) elements; `element` ends with kReturn.
int32_t json_array(Grammar* g, int32_t element, int32_t min, int32_t max, int32_t next);

// Any value and any object, up to kReturn. They recur, so a grammar needs one of them at most.
struct AnyJson {
  int32_t value, object;
};
AnyJson json_any(Grammar* g);

}  // namespace headrace
