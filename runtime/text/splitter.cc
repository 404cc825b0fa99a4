#include "runtime/text/splitter.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/base/utf8.h"

namespace headrace {
namespace {

// None of them looks behind a word's first character, and in all of them a space is the first character of a word, or
// stands between white space only. So a word begins at each space behind another character, and the words before it do
// not depend on what follows the space. That holds after digits were set apart, too, but not where they alone are: the
// text between two of them is one word.
constexpr std::array<std::string_view, 5> kWordPatterns = {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern,
                                                           kSeedCoderPattern, kTekkenPattern};
constexpr std::array<std::string_view, 2> kDigitPatterns = {"\\p{N}", "\\p{N}+"};

bool is_word_pattern(const Regex& regex) {
  return std::find(kWordPatterns.begin(), kWordPatterns.end(), regex.pattern()) != kWordPatterns.end();
}
bool is_known(const Regex& regex) {
  return is_word_pattern(regex) ||
         std::find(kDigitPatterns.begin(), kDigitPatterns.end(), regex.pattern()) != kDigitPatterns.end();
}

// The character before `at`; at > 0.
char32_t code_point_before(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && is_continuation(text[begin])) --begin;
  return next_utf8(text.substr(begin, at - begin)).code_point;
}

}  // namespace

Splitter::Splitter(std::vector<Regex> patterns)
    : patterns_(std::move(patterns)),
      known_(std::any_of(patterns_.begin(), patterns_.end(), is_word_pattern) &&
             std::all_of(patterns_.begin(), patterns_.end(), is_known)) {}

std::optional<size_t> Splitter::cut(std::string_view text, size_t least) const {
  if (!known_) return std::nullopt;
  for (size_t at = text.find(' ', std::max<size_t>(least, 1)); at != std::string_view::npos;
       at = text.find(' ', at + 1)) {
    if (!is_white_space(code_point_before(text, at))) return at;
  }
  return std::nullopt;
}

void Splitter::split_by(size_t pattern, std::string_view text, Regex::Scratch* scratch, const Emit& emit) const {
  if (text.empty()) return;
  if (pattern == patterns_.size()) {
    emit(text);
    return;
  }
  size_t done = 0;
  Regex::Match match;
  while (patterns_[pattern].find(text, done, scratch, &match)) {
    split_by(pattern + 1, text.substr(done, match.begin - done), scratch, emit);
    split_by(pattern + 1, text.substr(match.begin, match.end - match.begin), scratch, emit);
    done = match.end;
  }
  split_by(pattern + 1, text.substr(done), scratch, emit);
}

}  // namespace headrace
