#include "runtime/draft/ngram/index.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "cache/base.h"

namespace headrace {

// How much each shorter context weighs: with the likelihood q by the contexts of up to L tokens, a token that followed
// a context of L + 1 tokens c of n times has (c + kShorter * q) / (n + kShorter). Chosen so that likelihoods are
// correct on average: counted on 6,440 tokens of summaries and copies of reports by SmolLM2-64K, at temperatures 0 and
// 0.8.
constexpr double kShorter = 4;
constexpr int kMaxContexts = SuffixAutomaton::kCounted;
constexpr int kMaxContinuations = 64;  // of a context, those seen first

// A tree during its growth.
class NgramIndex::Growth {
 public:
  Growth(const SuffixAutomaton& text, const NgramLimits& limits, Tree* tree)
      : text_(text), limits_(limits), tree_(*tree) {
    tree_.reset(text_.text().back());
    tree_.scores = {0};
    matches_[0] = text_.end();
    guess_children(0, 1.0);
  }

  // Best first: a node is never likelier than its parent, so the result is the tree of the likeliest nodes.
  void run() {
    while (tree_.size() < limits_.nodes) {
      const auto best = std::max_element(guesses_.begin(), guesses_.end(),
                                         [](const Guess& a, const Guess& b) { return a.likelihood < b.likelihood; });
      if (best == guesses_.end() || best->likelihood < limits_.likelihood) return;
      const Guess taken = *best;
      best->likelihood = -1;
      const int32_t node = tree_.add(taken.token, taken.parent);
      tree_.scores.push_back(static_cast<float>(std::log(taken.likelihood)));
      matches_[static_cast<size_t>(node)] = text_.after(matches_[static_cast<size_t>(taken.parent)], taken.token);
      if (tree_.depths[static_cast<size_t>(node)] < limits_.depth) guess_children(node, taken.likelihood);
    }
  }

 private:
  // A candidate node.
  struct Guess {
    int32_t token, parent;
    double likelihood;
  };

  // `weight` is what remains for a context and all shorter ones. A token that no longer context predicted cannot become
  // likelier than that.
  void guess_children(int32_t node, double weight) {
    const size_t first = guesses_.size();
    SuffixAutomaton::Match match = matches_[static_cast<size_t>(node)];
    for (int i = 0; match.state > 0 && i < kMaxContexts; ++i) {
      const SuffixAutomaton::State& state = text_.state(match.state);
      const int32_t shorter = text_.state(state.link).length;
      if (state.followed > 0) {
        const double rest = std::pow(kShorter / (state.followed + kShorter), match.length - shorter);
        add_continuations(node, state, weight * (1 - rest) / state.followed, weight >= limits_.likelihood, first);
        weight *= rest;
      }
      match = {state.link, shorter};
    }
    const auto unlikely = [this](const Guess& guess) { return guess.likelihood < limits_.likelihood; };
    guesses_.erase(std::remove_if(guesses_.begin() + static_cast<std::ptrdiff_t>(first), guesses_.end(), unlikely),
                   guesses_.end());
  }

  void add_continuations(int32_t node, const SuffixAutomaton::State& state, double weight, bool others, size_t first) {
    int32_t edge = state.first_edge;
    for (int i = 0; edge >= 0 && i < kMaxContinuations; ++i, edge = text_.edge(edge).next) {
      const SuffixAutomaton::Edge& next = text_.edge(edge);
      if (next.token < 0) continue;
      const auto known = std::find_if(guesses_.begin() + static_cast<std::ptrdiff_t>(first), guesses_.end(),
                                      [&](const Guess& guess) { return guess.token == next.token; });
      if (known != guesses_.end()) {
        known->likelihood += weight * next.count;
      } else if (others) {
        guesses_.push_back({next.token, node, weight * next.count});
      }
    }
  }

  const SuffixAutomaton& text_;
  const NgramLimits& limits_;
  Tree& tree_;
  std::array<SuffixAutomaton::Match, kMaxTreeNodes> matches_;  // by node
  std::vector<Guess> guesses_;
};

void NgramIndex::propose(const NgramLimits& limits, Tree* tree) const {
  CHECK(size() > 0 && limits.nodes <= kMaxTreeNodes, "size=", size(), " nodes=", limits.nodes);
  Growth(text_, limits, tree).run();
}

}  // namespace headrace
