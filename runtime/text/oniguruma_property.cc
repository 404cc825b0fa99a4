// The names of properties that Oniguruma has, in PCRE2's words.
#include <algorithm>
#include <iterator>

#include "runtime/text/oniguruma_class.h"

namespace headrace::oniguruma {
namespace {

struct Property {
  std::string_view name;  // in lower case, without spaces, "-" and "_"
  const char* members;
};

// General categories by their long names, POSIX names, and properties. Two letters name a category, too.
constexpr Property kProperties[] = {
    {"alnum", "\\p{Alphabetic}\\p{Nd}"},
    {"alpha", "\\p{Alphabetic}"},
    {"alphabetic", "\\p{Alphabetic}"},
    {"ascii", "\\x{0}-\\x{7f}"},
    {"blank", "\\t\\p{Zs}"},
    {"casedletter", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    {"closepunctuation", "\\p{Pe}"},
    {"cntrl", "\\p{Cc}"},
    {"connectorpunctuation", "\\p{Pc}"},
    {"control", "\\p{Cc}"},
    {"currencysymbol", "\\p{Sc}"},
    {"dashpunctuation", "\\p{Pd}"},
    {"decimalnumber", "\\p{Nd}"},
    {"digit", "\\p{Nd}"},
    {"emoji", "\\p{Emoji}"},
    {"emojipresentation", "\\p{Emoji_Presentation}"},
    {"enclosingmark", "\\p{Me}"},
    {"extendedpictographic", "\\p{Extended_Pictographic}"},
    {"finalpunctuation", "\\p{Pf}"},
    {"format", "\\p{Cf}"},
    {"initialpunctuation", "\\p{Pi}"},
    {"lc", "\\p{Lu}\\p{Ll}\\p{Lt}"},
    {"letter", "\\p{L}"},
    {"letternumber", "\\p{Nl}"},
    {"lineseparator", "\\p{Zl}"},
    {"lower", "\\p{Lowercase}"},
    {"lowercase", "\\p{Lowercase}"},
    {"lowercaseletter", "\\p{Ll}"},
    {"mark", "\\p{M}"},
    {"mathsymbol", "\\p{Sm}"},
    {"modifierletter", "\\p{Lm}"},
    {"modifiersymbol", "\\p{Sk}"},
    {"nonspacingmark", "\\p{Mn}"},
    {"number", "\\p{N}"},
    {"openpunctuation", "\\p{Ps}"},
    {"other", "\\p{C}"},
    {"otherletter", "\\p{Lo}"},
    {"othernumber", "\\p{No}"},
    {"otherpunctuation", "\\p{Po}"},
    {"othersymbol", "\\p{So}"},
    {"paragraphseparator", "\\p{Zp}"},
    {"privateuse", "\\p{Co}"},
    {"punct", "\\p{P}"},
    {"punctuation", "\\p{P}"},
    {"separator", "\\p{Z}"},
    {"space", "\\p{White_Space}"},
    {"spaceseparator", "\\p{Zs}"},
    {"spacingmark", "\\p{Mc}"},
    {"symbol", "\\p{S}"},
    {"titlecaseletter", "\\p{Lt}"},
    {"unassigned", "\\p{Cn}"},
    {"upper", "\\p{Uppercase}"},
    {"uppercase", "\\p{Uppercase}"},
    {"uppercaseletter", "\\p{Lu}"},
    {"whitespace", "\\p{White_Space}"},
    {"word", kWordInClass},
    {"xdigit", "0-9A-Fa-f"},
};
constexpr std::string_view kCategories[] = {"c",  "cc", "cf", "cn", "co", "l",  "ll", "lm", "lo", "lt", "lu", "m",
                                            "mc", "me", "mn", "n",  "nd", "nl", "no", "p",  "pc", "pd", "pe", "pf",
                                            "pi", "po", "ps", "s",  "sc", "sk", "sm", "so", "z",  "zl", "zp", "zs"};
// Scripts by their Script property; PCRE2's plain names mean Script_Extensions.
constexpr std::string_view kScripts[] = {
    "arabic",   "armenian", "bengali",  "bopomofo", "cherokee", "common",    "cyrillic",  "devanagari", "ethiopic",
    "georgian", "greek",    "gujarati", "gurmukhi", "han",      "hangul",    "hebrew",    "hiragana",   "inherited",
    "kannada",  "katakana", "khmer",    "lao",      "latin",    "malayalam", "mongolian", "myanmar",    "oriya",
    "sinhala",  "syriac",   "tamil",    "telugu",   "thaana",   "thai",      "tibetan",   "yi"};

template <typename List>
bool listed(const List& list, std::string_view name) {
  return std::find(std::begin(list), std::end(list), name) != std::end(list);
}

}  // namespace

std::string property_members(const std::string& name) {
  for (const Property& property : kProperties)
    if (property.name == name) return property.members;
  std::string shown = name;
  shown[0] = static_cast<char>(shown[0] - 32);
  if (listed(kCategories, name)) return "\\p{" + shown + "}";
  if (listed(kScripts, name)) return "\\p{sc:" + shown + "}";
  return "";
}

// Sets that are not closed under the folding of case. Not only of upper or lower case: "µ" is common, its other forms
// are Greek, and U+0345, a mark, folds to "ι".
bool is_cased_property(std::string_view name) {
  constexpr std::string_view kCased[] = {"ascii",
                                         "casedletter",
                                         "common",
                                         "emoji",
                                         "extendedpictographic",
                                         "greek",
                                         "inherited",
                                         "lc",
                                         "ll",
                                         "lower",
                                         "lowercase",
                                         "lowercaseletter",
                                         "lt",
                                         "lu",
                                         "m",
                                         "mark",
                                         "mn",
                                         "nonspacingmark",
                                         "titlecaseletter",
                                         "upper",
                                         "uppercase",
                                         "uppercaseletter"};
  return listed(kCased, name);
}

}  // namespace headrace::oniguruma
