#include "runtime/draft/pair/merge.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace headrace {
namespace {

int32_t child_of(const Tree& tree, int32_t parent, int32_t token) {
  for (size_t i = static_cast<size_t>(parent) + 1; i < tree.tokens.size(); ++i) {
    if (tree.parents[i] == parent && tree.tokens[i] == token) return static_cast<int32_t>(i);
  }
  return -1;
}

// Adds what `to` lacks, and raises the scores of what it has. No node scores above its parent.
void add_tree(const Tree& from, Tree* to) {
  std::vector<int32_t> places(from.tokens.size(), 0);
  for (size_t i = 1; i < from.tokens.size(); ++i) {
    const int32_t parent = places[static_cast<size_t>(from.parents[i])];
    const float score = std::min(from.scores[i], to->scores[static_cast<size_t>(parent)]);
    int32_t node = child_of(*to, parent, from.tokens[i]);
    if (node < 0) {
      node = to->add(from.tokens[i], parent);
      to->scores.push_back(score);
    }
    float& best = to->scores[static_cast<size_t>(node)];
    best = std::max(best, score);
    places[i] = node;
  }
}

}  // namespace

void merge_trees(const Tree& a, const Tree& b, int64_t nodes, Tree* out) {
  CHECK(a.tokens[0] == b.tokens[0] && a.scores.size() == a.tokens.size() && b.scores.size() == b.tokens.size(),
        "roots ", a.tokens[0], " and ", b.tokens[0]);
  Tree all;
  all.reset(a.tokens[0]);
  all.scores = {0};
  add_tree(a, &all);
  add_tree(b, &all);
  // The likeliest first; a parent is before its children, which score no higher and were added later.
  std::vector<int32_t> order(all.tokens.size()), places(all.tokens.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin() + 1, order.end(), [&](int32_t x, int32_t y) {
    return all.scores[static_cast<size_t>(x)] > all.scores[static_cast<size_t>(y)];
  });
  out->reset(all.tokens[0]);
  out->scores = {0};
  for (size_t i = 1; i < std::min(order.size(), static_cast<size_t>(nodes)); ++i) {
    const size_t node = static_cast<size_t>(order[i]);
    places[node] = out->add(all.tokens[node], places[static_cast<size_t>(all.parents[node])]);
    out->scores.push_back(all.scores[node]);
  }
}

}  // namespace headrace
