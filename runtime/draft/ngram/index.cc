#include "runtime/draft/ngram/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "cache/base.h"

namespace headrace {

// The weight of unseen continuations, chosen so that a likelihood of 0.25 is correct every fourth time: counted on
// 1,288 tokens of summaries of books and a license by SmolLM2-135M, at temperatures 0 and 0.8.
constexpr double kUnseen = 12;

// A tree during its growth.
class NgramIndex::Growth {
 public:
  Growth(const NgramIndex& index, const NgramLimits& limits, Tree* tree)
      : tokens_(index.tokens_), places_(index.find_places()), limits_(limits), tree_(*tree) {
    tree_.reset(tokens_.back());
    tree_.scores = {0};
    leading_[0] = static_cast<uint32_t>((uint64_t{1} << places_.count) - 1);
    guess_children(0, 1.0);
  }

  // Best first: a node is never likelier than its parent, so the result is the tree of the likeliest nodes.
  void run() {
    while (tree_.size() < limits_.nodes) {
      Guess* const end = guesses_.data() + guessed_;
      Guess* const best = std::max_element(guesses_.data(), end,
                                           [](const Guess& a, const Guess& b) { return a.likelihood < b.likelihood; });
      if (best == end || best->likelihood < limits_.likelihood) return;
      const Guess taken = *best;
      best->likelihood = -1;
      const int32_t node = tree_.add(taken.token, taken.parent);
      tree_.scores.push_back(static_cast<float>(std::log(taken.likelihood)));
      leading_[static_cast<size_t>(node)] = taken.places;
      if (depth(node) < limits_.depth) guess_children(node, taken.likelihood);
    }
  }

 private:
  // A candidate node; `places` are the bits of the places that lead to it.
  struct Guess {
    int32_t token, parent;
    uint32_t places;
    double likelihood;
  };

  int64_t depth(int32_t node) const { return tree_.depths[static_cast<size_t>(node)]; }

  // The token that a place predicts after a node; beyond the end of the text the path to the node continues the text.
  int32_t token_after(int32_t node, const Place& place) const {
    const int64_t index = place.next + depth(node), size = static_cast<int64_t>(tokens_.size());
    if (index < size) return tokens_[static_cast<size_t>(index)];
    int32_t ancestor = node;
    while (depth(ancestor) > index - size + 1) ancestor = tree_.parents[static_cast<size_t>(ancestor)];
    return tree_.tokens[static_cast<size_t>(ancestor)];
  }

  void guess_children(int32_t node, double likelihood) {
    const size_t first = guessed_;
    double all = kUnseen;
    for (uint32_t left = leading_[static_cast<size_t>(node)]; left != 0; left &= left - 1) {
      const int bit = std::countr_zero(left);
      const Place& place = places_.at[static_cast<size_t>(bit)];
      const double agreed = static_cast<double>(place.agreement + depth(node)), weight = agreed * agreed;
      const int32_t token = token_after(node, place);
      size_t at = first;
      while (at < guessed_ && guesses_[at].token != token) ++at;
      if (at == guessed_) guesses_[guessed_++] = {token, node, 0, 0};
      guesses_[at].places |= uint32_t{1} << bit;
      guesses_[at].likelihood += weight;
      all += weight;
    }
    for (size_t i = first; i < guessed_; ++i) guesses_[i].likelihood *= likelihood / all;
  }

  const std::vector<int32_t>& tokens_;
  const Places places_;
  const NgramLimits& limits_;
  Tree& tree_;
  std::array<uint32_t, kMaxTreeNodes> leading_;  // by node: the places that led to it
  std::array<Guess, kMaxTreeNodes * kMaxPlaces> guesses_;
  size_t guessed_ = 0;
};

// The text, and the chains' buckets and links.
uint64_t NgramIndex::bytes(int64_t most_tokens) {
  const uint64_t capacity = static_cast<uint64_t>(most_tokens);
  return (capacity + kOrders.size() * (std::bit_ceil(capacity) + capacity)) * sizeof(int32_t);
}

NgramIndex::NgramIndex(int64_t most_tokens) {
  CHECK(most_tokens > 0 && most_tokens < INT32_MAX, "most_tokens=", most_tokens);
  const size_t capacity = static_cast<size_t>(most_tokens);
  tokens_.reserve(capacity);
  for (Chains& chains : chains_) {
    chains.buckets.assign(std::bit_ceil(capacity), -1);
    chains.before.reserve(capacity);
  }
}

// For the run of tokens that ends with `last`.
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

// Removes the latest runs first, so that each bucket gets its previous value back.
void NgramIndex::cut(int64_t size) {
  CHECK(size >= 0 && size <= this->size(), "size=", size);
  for (int64_t last = this->size() - 1; last >= size; --last) {
    for (size_t order = 0; order < kOrders.size(); ++order) {
      Chains& chains = chains_[order];
      if (last + 1 >= kOrders[order]) chains.buckets[bucket(order, last)] = chains.before.back();
      chains.before.pop_back();
    }
    tokens_.pop_back();
  }
}

// The number of tokens up to `last` that equal those at the end of the text.
int64_t NgramIndex::agreement(int64_t last) const {
  const int64_t most = std::min(kMaxAgreement, last + 1);
  int64_t count = 0;
  while (count < most && tokens_[static_cast<size_t>(last - count)] == tokens_[static_cast<size_t>(size() - 1 - count)])
    ++count;
  return count;
}

NgramIndex::Places NgramIndex::find_places() const {
  Places places;
  for (size_t order = 0; order < kOrders.size(); ++order) {
    int32_t last = chains_[order].before.back();
    for (int64_t step = 0; last >= 0 && step < kMaxSteps && places.count < kMaxPlaces; ++step) {
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

void NgramIndex::propose(const NgramLimits& limits, Tree* tree) const {
  CHECK(size() > 0 && limits.nodes <= kMaxTreeNodes, "size=", size(), " nodes=", limits.nodes);
  Growth(*this, limits, tree).run();
}

}  // namespace headrace
