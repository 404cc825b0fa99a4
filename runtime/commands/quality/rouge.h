// ROUGE-L: how much of one text another keeps, in order (Lin, "ROUGE: a package for automatic evaluation of summaries",
// 2004, section 3.1). Over token ids, so it does not depend on a language's words. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>

namespace headrace {

// The length of the longest common subsequence, L, of texts of n and m tokens.
int64_t longest_common_subsequence(std::span<const int32_t> a, std::span<const int32_t> b);

// F = 2 L / (n + m): recall and precision have equal weight, so the function is symmetric. 1 for two empty texts.
double rouge_l(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace headrace
