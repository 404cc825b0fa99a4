#include "runtime/speculation/accept.h"

namespace headrace {

void accept_behind(const Tree& tree, std::span<const int32_t> samples, int64_t settled, Acceptance* out) {
  CHECK(static_cast<int64_t>(samples.size()) == tree.size() && settled < tree.size(), "settled=", settled);
  out->nodes.assign(1, 0);
  out->next = samples[0];
  for (int32_t node = 1; node < tree.size(); ++node) {  // parents precede children: one pass finds the whole path
    const size_t i = static_cast<size_t>(node);
    if (tree.parents[i] == out->nodes.back() && (node <= settled || tree.tokens[i] == out->next)) {
      out->nodes.push_back(node);
      out->next = samples[i];
    }
  }
}

void accept(const Tree& tree, std::span<const int32_t> samples, Acceptance* out) {
  accept_behind(tree, samples, 0, out);
}

}  // namespace headrace
