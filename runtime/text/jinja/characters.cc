#include "runtime/text/jinja/characters.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/utf8.h"

namespace headrace::jinja {

namespace {

int category(char32_t c) { return utf8proc_category(static_cast<int32_t>(c)); }

bool is_digit(char32_t c) { return category(c) == UTF8PROC_CATEGORY_ND; }
bool is_number(char32_t c) {
  return is_digit(c) || category(c) == UTF8PROC_CATEGORY_NL || category(c) == UTF8PROC_CATEGORY_NO;
}

template <typename Function>
void for_each_character(std::string_view text, Function&& function) {
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    function(unit.code_point);
    text.remove_prefix(unit.length);
  }
}

}  // namespace

bool is_space(char32_t c) { return is_white_space(c) || (c >= 0x1C && c <= 0x1F); }

bool is_line_end(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

bool is_letter(char32_t c) {
  const int kind = category(c);
  return kind == UTF8PROC_CATEGORY_LU || kind == UTF8PROC_CATEGORY_LL || kind == UTF8PROC_CATEGORY_LT ||
         kind == UTF8PROC_CATEGORY_LM || kind == UTF8PROC_CATEGORY_LO;
}

char32_t first_character(std::string_view text) { return next_utf8(text).code_point; }

std::string_view without_leading_space(std::string_view text) {
  while (!text.empty()) {
    const Utf8Unit unit = next_utf8(text);
    if (!is_space(unit.code_point)) break;
    text.remove_prefix(unit.length);
  }
  return text;
}

std::string_view without_trailing_space(std::string_view text) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!is_space(first_character(text.substr(begin)))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::string upper(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) {
    if (c == 0xDF) {
      out += "SS";
    } else {
      append_code_point(static_cast<char32_t>(utf8proc_toupper(static_cast<int32_t>(c))), &out);
    }
  });
  return out;
}

std::string lower(std::string_view text) {
  std::string out;
  for_each_character(text, [&](char32_t c) {
    append_code_point(static_cast<char32_t>(utf8proc_tolower(static_cast<int32_t>(c))), &out);
  });
  return out;
}

std::string title(std::string_view character) {
  const char32_t c = first_character(character);
  std::string out;
  if (c == 0xDF) return "Ss";
  append_code_point(static_cast<char32_t>(utf8proc_totitle(static_cast<int32_t>(c))), &out);
  return out;
}

bool all_of_class(std::string_view text, CharacterClass wanted) {
  bool all = true, cased = false;
  for_each_character(text, [&](char32_t c) {
    const bool is_upper = category(c) == UTF8PROC_CATEGORY_LU, is_lower = category(c) == UTF8PROC_CATEGORY_LL;
    switch (wanted) {
      case CharacterClass::kAlpha:
        all &= is_letter(c);
        break;
      case CharacterClass::kDigit:
        all &= is_digit(c);
        break;
      case CharacterClass::kAlnum:
        all &= is_letter(c) || is_number(c);
        break;
      case CharacterClass::kSpace:
        all &= is_space(c);
        break;
      case CharacterClass::kUpper:
        all &= !is_lower, cased |= is_upper;
        break;
      case CharacterClass::kLower:
        all &= !is_upper, cased |= is_lower;
        break;
    }
  });
  const bool needs_case = wanted == CharacterClass::kUpper || wanted == CharacterClass::kLower;
  return all && !text.empty() && (cased || !needs_case);
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

size_t find_part(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  const void* const found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  return found == nullptr ? std::string_view::npos : static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

size_t find_last_part(std::string_view text, std::string_view part) {
  const std::string backward(text.rbegin(), text.rend()), wanted(part.rbegin(), part.rend());
  const size_t found = find_part(backward, wanted);
  return found == std::string_view::npos ? found : text.size() - found - part.size();
}

}  // namespace headrace::jinja
