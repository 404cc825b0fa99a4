#include "runtime/text/split.h"

#include <algorithm>
#include <array>

#include "runtime/base/utf8.h"

namespace headrace {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";

size_t character_before(std::string_view text, size_t at) {
  while (at > 0 && at < text.size() && is_continuation(text[at])) --at;
  return at;
}

std::string_view trimmed(std::string_view text) {
  const size_t end = text.find_last_not_of(kSpace);
  return text.substr(0, end == std::string_view::npos ? 0 : end + 1);
}

// About the most bytes that fit (to 1/256), at a character's border. The search begins around `guess`.
size_t most_bytes(std::string_view text, size_t guess, int64_t most, const CountTokens& count) {
  const auto fits = [&](size_t bytes) { return count(text.substr(0, character_before(text, bytes))) <= most; };
  size_t fit = 0, too_long = std::min(text.size(), guess * 2);
  while (fits(too_long)) {
    fit = too_long;
    if (fit == text.size()) return fit;
    too_long = std::min(text.size(), fit * 2);
  }
  while (too_long - fit > std::max<size_t>(1, fit / 256)) {
    const size_t middle = fit + (too_long - fit) / 2;
    (fits(middle) ? fit : too_long) = middle;
  }
  return character_before(text, fit);
}

// Where to cut a text of `bytes` that fits.
size_t border(std::string_view text, size_t bytes) {
  const std::string_view fitting = text.substr(0, bytes);
  constexpr std::array<std::string_view, 6> kBorders = {"\n\n", "\n", ". ", "! ", "? ", " "};
  for (const std::string_view mark : kBorders) {
    const size_t at = fitting.rfind(mark);
    if (at != std::string_view::npos && at >= bytes / 2) return at + mark.size();
  }
  return bytes;
}

}  // namespace

std::vector<std::string_view> split_to_fit(std::string_view text, int64_t most, const CountTokens& count) {
  std::vector<std::string_view> parts;
  size_t guess = static_cast<size_t>(std::max<int64_t>(most, 1)) * 4;
  for (;;) {
    const size_t begin = text.find_first_not_of(kSpace);
    if (begin == std::string_view::npos) return parts;
    text = trimmed(text.substr(begin));
    if (guess >= text.size() && count(text) <= most) {
      parts.push_back(text);
      return parts;
    }
    const size_t bytes = most_bytes(text, guess, most, count);
    if (bytes == 0) return {};
    const size_t cut = bytes == text.size() ? bytes : border(text, bytes);
    parts.push_back(trimmed(text.substr(0, cut)));
    text.remove_prefix(cut);
    guess = bytes;
  }
}

}  // namespace headrace
