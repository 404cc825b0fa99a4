// Character classes and properties of runtime/text/oniguruma.h. Internal to it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/text/oniguruma.h"

namespace headrace::oniguruma {

// Where a pattern is being read.
struct Reader {
  std::string_view text;
  size_t at = 0;
  const RefusePattern& refuse;

  bool done() const { return at >= text.size(); }
  bool next_is(std::string_view part) const { return text.substr(at).starts_with(part); }
  bool take(std::string_view part) {
    if (!next_is(part)) return false;
    at += part.size();
    return true;
  }
  char32_t character();  // the next one
  [[noreturn]] void fail(const std::string& what) const;
};

// "\x{41}": one character, in a class or outside.
std::string escaped(char32_t character);

// The members of a set of characters, as the inside of a PCRE2 class: "\p{L}\p{M}". `negated`: of all others.
struct Set {
  std::string members;
  bool negated = false;
};
// PCRE2's class for it.
std::string class_of(const Set& set);

extern const char* const kWordMembers;  // what \w matches

// After the backslash. An escape for one character gives true and the character; else the reader stays.
bool take_character_escape(Reader* reader, bool in_class, char32_t* character);
// \d \D \s \S \w \W \h \H \p{…} \P{…}, after the backslash; false: none of these. `cased`: a property of upper- or
// lower-case letters.
bool take_set_escape(Reader* reader, Set* set, bool* cased);

// A class, after its '['. Returns an expression that matches one character.
std::string read_class(Reader* reader, bool caseless);

}  // namespace headrace::oniguruma
