#include "runtime/commands/quality/rouge.h"

#include <algorithm>
#include <vector>

namespace headrace {

// Row by row; `before` holds the entry above and to the left.
int64_t longest_common_subsequence(std::span<const int32_t> a, std::span<const int32_t> b) {
  std::vector<int64_t> row(b.size() + 1);
  for (const int32_t token : a) {
    int64_t before = 0;
    for (size_t i = 0; i < b.size(); ++i) {
      const int64_t above = row[i + 1];
      row[i + 1] = token == b[i] ? before + 1 : std::max(above, row[i]);
      before = above;
    }
  }
  return row.back();
}

double rouge_l(std::span<const int32_t> a, std::span<const int32_t> b) {
  if (a.empty() && b.empty()) return 1;
  return 2.0 * static_cast<double>(longest_common_subsequence(a, b)) / static_cast<double>(a.size() + b.size());
}

}  // namespace headrace
