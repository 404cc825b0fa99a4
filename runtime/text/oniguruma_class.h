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
  char32_t character();            // takes the next one
  std::string_view shown() const;  // the next one, for an error
  [[noreturn]] void fail(const std::string& what) const;
};

// \p{…} and [:…:]: the inside of a PCRE2 class by the name in lower case, without spaces, "-" and "_". Empty: not
// known.
std::string property_members(const std::string& name);
// Whether the other case of one of its characters is no member.
bool is_cased_property(std::string_view name);

// "\x{41}": one character, in a class or outside.
std::string escaped(char32_t character);

// The members of a set of characters, as the inside of a PCRE2 class: "\p{L}\p{M}". `negated`: of all others.
struct Set {
  std::string members;
  bool negated = false;
};
// PCRE2's class for it.
std::string class_of(const Set& set);

// What \w matches, and what \b looks at: that of a class, and some numbers of Latin-1.
inline constexpr const char* kWordInClass = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
inline constexpr const char* kWordMembers = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

// Whether the folding of case relates the character to another number of characters ("ß" and "ss"), or may do so.
bool folds_oddly(char32_t character);

// After the backslash. An escape for one character gives true and the character; else the reader stays.
bool take_character_escape(Reader* reader, bool in_class, char32_t* character);
// \d \D \s \S \w \W \h \H \p{…} \P{…}, after the backslash; false: none of these. `cased`: it has a character, but
// not the same one in the other case.
bool take_set_escape(Reader* reader, bool in_class, Set* set, bool* cased);

// A class, after its '['. Returns an expression that matches one character.
std::string read_class(Reader* reader, bool caseless);

}  // namespace headrace::oniguruma
