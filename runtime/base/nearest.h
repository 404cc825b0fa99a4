// The word that somebody meant who mistyped it. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// The word with the fewest letters inserted, removed, replaced or swapped with a neighbour, upper case equal to lower
// case; empty if more than a third of the letters would have to change. Of equals the first.
std::string nearest_word(std::string_view typed, const std::vector<std::string>& words);
// "; did you mean 'lossless'?" for an error; empty if no word is near.
std::string did_you_mean(std::string_view typed, const std::vector<std::string>& words);

}  // namespace headrace
