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
constexpr std::array<std::string_view, 7> kWordPatterns = {
    kGpt2Pattern, kLlama3Pattern, kQwen2Pattern, kQwen35Pattern, kSeedCoderPattern, kTekkenPattern, kO200kPattern};
constexpr std::array<std::string_view, 2> kDigitPatterns = {"\\p{N}", "\\p{N}+"};

template <typename List>
bool is_among(const List& patterns, const SplitRule& rule) {
  return rule.behavior == SplitRule::kIsolated &&
         std::find(patterns.begin(), patterns.end(), rule.pattern.pattern()) != patterns.end();
}
bool is_word_pattern(const SplitRule& rule) { return is_among(kWordPatterns, rule); }
bool is_known(const SplitRule& rule) { return is_word_pattern(rule) || is_among(kDigitPatterns, rule); }

// The character before `at`; at > 0.
char32_t code_point_before(std::string_view text, size_t at) {
  size_t begin = at - 1;
  while (begin > 0 && is_continuation(text[begin])) --begin;
  return next_utf8(text.substr(begin, at - begin)).code_point;
}

}  // namespace

Splitter::Splitter(std::vector<SplitRule> rules)
    : rules_(std::move(rules)),
      known_(std::any_of(rules_.begin(), rules_.end(), is_word_pattern) &&
             std::all_of(rules_.begin(), rules_.end(), is_known)) {}

std::optional<size_t> Splitter::cut(std::string_view text, size_t least) const {
  if (!known_) return std::nullopt;
  for (size_t at = text.find(' ', std::max<size_t>(least, 1)); at != std::string_view::npos;
       at = text.find(' ', at + 1)) {
    if (!is_white_space(code_point_before(text, at))) return at;
  }
  return std::nullopt;
}

namespace {

struct Piece {
  size_t begin, end;
  bool matched;
};

// The matches and the text between them. An empty match cuts, but not where the last match has ended.
std::vector<Piece> pieces_of(const SplitRule& rule, std::string_view text, Regex::Scratch* scratch) {
  std::vector<Piece> pieces;
  size_t done = 0, from = 0;
  Regex::Match match;
  bool any = false;
  while (from <= text.size() && rule.pattern.find(text, from, scratch, &match)) {
    const bool empty = match.begin == match.end;
    if (!empty || !any || match.begin != done) {
      if (done < match.begin) pieces.push_back({done, match.begin, rule.invert});
      pieces.push_back({match.begin, match.end, !rule.invert});
      done = match.end;
      any = true;
    }
    from = match.end;
    if (empty) from += from < text.size() ? utf8_length(text[from]) : 1;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), rule.invert});
  return pieces;
}

// A match that follows a piece of text, or a match in turn, joins it; the reference's rule is by turns.
void merge(SplitRule::Behavior behavior, std::vector<Piece>* pieces) {
  const bool backward = behavior == SplitRule::kMergedWithNext, contiguous = behavior == SplitRule::kContiguous;
  if (backward) std::reverse(pieces->begin(), pieces->end());
  std::vector<Piece> out;
  bool before = false;  // whether the last piece was a match
  for (const Piece& piece : *pieces) {
    const bool joins = contiguous ? piece.matched == before : piece.matched && !before;
    if (joins && !out.empty()) {
      out.back().begin = std::min(out.back().begin, piece.begin);
      out.back().end = std::max(out.back().end, piece.end);
    } else {
      out.push_back(piece);
    }
    before = piece.matched;
  }
  if (backward) std::reverse(out.begin(), out.end());
  *pieces = std::move(out);
}

}  // namespace

void Splitter::split_by(size_t index, std::string_view text, Regex::Scratch* scratch, const Emit& emit) const {
  if (text.empty()) return;
  if (index == rules_.size()) {
    emit(text);
    return;
  }
  const SplitRule& rule = rules_[index];
  std::vector<Piece> pieces = pieces_of(rule, text, scratch);
  if (rule.behavior >= SplitRule::kMergedWithPrevious) merge(rule.behavior, &pieces);
  for (const Piece& piece : pieces) {
    if (rule.behavior == SplitRule::kRemoved && piece.matched) continue;
    split_by(index + 1, text.substr(piece.begin, piece.end - piece.begin), scratch, emit);
  }
}

}  // namespace headrace
