#include "runtime/base/nearest.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "cache/base.h"

namespace headrace {
namespace {

constexpr size_t kLongestWord = 64;  // of what is compared

bool same(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// Letters to insert, remove, replace or swap with a neighbour. No letter is changed twice.
size_t edits_between(std::string_view a, std::string_view b) {
  std::array<std::array<size_t, kLongestWord + 1>, 3> rows{};  // of the last letters of `a`: before, last, now
  for (size_t j = 0; j <= b.size(); ++j) rows[1][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    std::array<size_t, kLongestWord + 1>&before = rows[0], &last = rows[1], &now = rows[2];
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (same(a[i - 1], b[j - 1]) ? 0 : 1)});
      if (i > 1 && j > 1 && same(a[i - 1], b[j - 2]) && same(a[i - 2], b[j - 1]))
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    before = last;
    last = now;
  }
  return rows[1][b.size()];
}

}  // namespace

std::string nearest_word(std::string_view typed, const std::vector<std::string>& words) {
  std::string best;
  size_t fewest = std::min(typed.size(), kLongestWord) / 3 + 1;
  for (const std::string& word : words) {
    if (typed.size() > kLongestWord || word.size() > kLongestWord) continue;
    const size_t edits = edits_between(typed, word);
    if (edits >= fewest) continue;
    fewest = edits;
    best = word;
  }
  return best;
}

std::string did_you_mean(std::string_view typed, const std::vector<std::string>& words) {
  const std::string word = nearest_word(typed, words);
  return word.empty() ? "" : str("; did you mean '", word, "'?");
}

}  // namespace headrace
