#include "runtime/draft/ngram.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "cache/base.h"

namespace headrace {

// A node that may be added to the tree: `places` are the bits of those that lead to it.
struct NgramIndex::Guess {
  int32_t token, parent;
  uint32_t places;
  double likelihood;
};

NgramIndex::NgramIndex(int64_t most_tokens) {
  CHECK(most_tokens > 0 && most_tokens < INT32_MAX, "most_tokens=", most_tokens);
  const size_t capacity = static_cast<size_t>(most_tokens);
  tokens_.reserve(capacity);
  for (Chains& chains : chains_) {
    chains.buckets.assign(std::bit_ceil(capacity), -1);
    chains.before.reserve(capacity);
  }
}

// Of the run of tokens that ends with `last`.
size_t NgramIndex::bucket(size_t order, int64_t last) const {
  uint64_t hash = 0;
  for (int64_t i = last - kOrders[order] + 1; i <= last; ++i)
    hash = (hash + static_cast<uint32_t>(tokens_[static_cast<size_t>(i)]) + 1) * 0x9e3779b97f4a7c15u;
  return static_cast<size_t>(hash >> 32) & (chains_[order].buckets.size() - 1);
}

void NgramIndex::append(int32_t token) {
  CHECK(tokens_.size() < tokens_.capacity(), "size=", tokens_.size());
  const int64_t last = size();
  tokens_.push_back(token);
  for (size_t order = 0; order < kOrders.size(); ++order) {
    Chains& chains = chains_[order];
    int32_t before = -1;
    if (last + 1 >= kOrders[order])
      before = std::exchange(chains.buckets[bucket(order, last)], static_cast<int32_t>(last));
    chains.before.push_back(before);
  }
}

void NgramIndex::append(std::span<const int32_t> tokens) {
  for (const int32_t token : tokens) append(token);
}

// How many tokens up to and with `last` equal those at the text's end.
int64_t NgramIndex::agreement(int64_t last) const {
  const int64_t most = std::min(kMostAgreement, last + 1);
  int64_t count = 0;
  while (count < most && tokens_[static_cast<size_t>(last - count)] == tokens_[static_cast<size_t>(size() - 1 - count)])
    ++count;
  return count;
}

NgramIndex::Places NgramIndex::find_places() const {
  Places places;
  for (size_t order = 0; order < kOrders.size(); ++order) {
    int32_t last = chains_[order].before.back();
    for (int64_t step = 0; last >= 0 && step < kMostSteps && places.count < kMostPlaces; ++step) {
      const int64_t next = int64_t{last} + 1, agreed = agreement(last);
      const std::span<const Place> found(places.at.data(), static_cast<size_t>(places.count));
      const bool known =
          std::any_of(found.begin(), found.end(), [&](const Place& place) { return place.next == next; });
      if (agreed >= kOrders[order] && !known) places.at[static_cast<size_t>(places.count++)] = {next, agreed};
      last = chains_[order].before[static_cast<size_t>(last)];
    }
  }
  return places;
}

// Best first: a node is never more likely than its parent, so the tree is that of the most likely nodes.
void NgramIndex::propose(const NgramLimits& limits, Tree* tree) const {
  CHECK(size() > 0 && limits.nodes <= kMaxTreeNodes, "size=", size(), " nodes=", limits.nodes);
  tree->reset(tokens_.back());
  const Places places = find_places();
  std::array<uint32_t, kMaxTreeNodes> leading = {};  // by node: the places that led there
  leading[0] = static_cast<uint32_t>((uint64_t{1} << places.count) - 1);
  std::array<Guess, kMaxTreeNodes * kMostPlaces> guesses;
  size_t guessed = 0;

  // What a place says follows a node; beyond the text's end, the path to the node goes on as itself.
  const auto token_after = [&](int32_t node, const Place& place) {
    const int64_t depth = tree->depths[static_cast<size_t>(node)], index = place.next + depth;
    if (index < size()) return tokens_[static_cast<size_t>(index)];
    int32_t ancestor = node;
    while (tree->depths[static_cast<size_t>(ancestor)] > index - size() + 1)
      ancestor = tree->parents[static_cast<size_t>(ancestor)];
    return tree->tokens[static_cast<size_t>(ancestor)];
  };
  const auto guess_after = [&](int32_t node, double likelihood) {
    const int64_t depth = tree->depths[static_cast<size_t>(node)];
    const size_t first = guessed;
    double all = 4;  // what was never seen: two tokens, squared
    for (uint32_t left = leading[static_cast<size_t>(node)]; left != 0; left &= left - 1) {
      const int bit = std::countr_zero(left);
      const Place& place = places.at[static_cast<size_t>(bit)];
      const double agreed = static_cast<double>(place.agreement + depth), weight = agreed * agreed;
      const int32_t token = token_after(node, place);
      size_t at = first;
      while (at < guessed && guesses[at].token != token) ++at;
      if (at == guessed) guesses[guessed++] = {token, node, 0, 0};
      guesses[at].places |= uint32_t{1} << bit;
      guesses[at].likelihood += weight;
      all += weight;
    }
    for (size_t i = first; i < guessed; ++i) guesses[i].likelihood *= likelihood / all;
  };

  guess_after(0, 1.0);
  while (tree->size() < limits.nodes) {
    Guess* const end = guesses.data() + guessed;
    Guess* const best = std::max_element(guesses.data(), end,
                                         [](const Guess& a, const Guess& b) { return a.likelihood < b.likelihood; });
    if (best == end || best->likelihood < limits.likelihood) return;
    const Guess taken = *best;
    best->likelihood = -1;
    const int32_t node = tree->add(taken.token, taken.parent);
    leading[static_cast<size_t>(node)] = taken.places;
    if (tree->depths[static_cast<size_t>(node)] < limits.depth) guess_after(node, taken.likelihood);
  }
}

}  // namespace headrace
