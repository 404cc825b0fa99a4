// Cuts a long text into parts that fit, where a reader would. Pure; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace headrace {

// The tokens of a text, or of the prompt around it. A longer text has more, but for a few at its ends.
using CountTokens = std::function<int64_t(std::string_view text)>;

// Parts in the order of the text, without the white space between them; each is as long as `most` tokens allow. A part
// ends at an empty line in its second half; else at the end of a line, of a sentence, of a word, of a character, the
// first of these that is there. Nothing but white space is left out. `text` is UTF-8. Empty: not even one character
// fits.
std::vector<std::string_view> split_to_fit(std::string_view text, int64_t most, const CountTokens& count);

}  // namespace headrace
