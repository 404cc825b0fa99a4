// Characters as Python's str has them, on valid UTF-8. Pure functions.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::jinja {

bool is_space(char32_t c);     // str.isspace()
bool is_line_end(char32_t c);  // of str.splitlines()
std::string_view without_leading_space(std::string_view text);
std::string_view without_trailing_space(std::string_view text);
char32_t first_character(std::string_view text);  // REQUIRES: not empty

std::string upper(std::string_view text);
std::string lower(std::string_view text);
std::string title(std::string_view character);  // of one that begins a word

enum class CharacterClass { kAlpha, kDigit, kAlnum, kSpace, kUpper, kLower };
// str.isalpha() and so on: every character is of the class, and there is one.
bool all_of_class(std::string_view text, CharacterClass wanted);
bool is_letter(char32_t c);

size_t count_characters(std::string_view text);

// Where `part`, which is not empty, first occurs at or after `from`, or last begins at or before the end of the text;
// npos if nowhere. In linear time, whatever the two are.
size_t find_part(std::string_view text, std::string_view part, size_t from = 0);
size_t find_last_part(std::string_view text, std::string_view part);

}  // namespace headrace::jinja
