// The tree of pending tokens of a lossless run whose refreshes stream. Partial steps add several tokens each, and a
// refresh confirms the correct path. A refresh is bound by the link, so it verifies hundreds of nodes for the cost of
// one. Where the partial KV's first choice is wrong, the second or third is often correct; keeping and continuing those
// confirms more tokens than a chain (EAGLE-2 section 4: the most likely nodes first; the "draft" is the target with its
// partial KV). A draft, where there is one, continues the first choices; what it guesses wrong stays beside them.
//
// A partial step ranks the likeliest tokens after each node by logit / T plus the sampler's own noise (docs/design.md,
// section 6, rule 3). The full KV's logits differ a little; how little is learned from what refreshes confirm: the
// chance that a child is right is the softmax of its node's ranks at the sharpness that has predicted them best. A
// token that ends the run is no node: nothing follows it, and the sample at its parent says whether it is right.
//
// Pure: it knows no model, no device and no clock. Thread: one.
// Way of use: begin(); for each partial step offer(), if a draft has something to offer, extend(), rank(); before a
// refresh fill(), after it learn() and clear().
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/speculation/accept.h"
#include "runtime/speculation/tree.h"

namespace headrace {

constexpr int64_t kRankedTokens = 8;  // after a node

struct PendingTreeLimits {
  int64_t width = 48;             // nodes that a partial step computes at most
  int64_t grown = kMaxPassNodes;  // that partial steps compute at most, from one refresh to the next
  int64_t nodes = kMaxPassNodes;  // that a refresh judges at most
  double least = 0.002;           // a node that is right less often is not kept
  bool operator==(const PendingTreeLimits&) const = default;
};

// What is ranked after some nodes: [nodes, kRankedTokens], best first; and [nodes] the sample after each by the partial
// KV, which filters may have made another than the best.
struct Ranked {
  std::span<const int32_t> samples, tokens;
  std::span<const float> log_probs;
};

class PendingTree {
 public:
  // `ends`: the tokens that end the run.
  explicit PendingTree(const PendingTreeLimits& limits, std::vector<int32_t> ends = {});

  void begin(int32_t root);
  bool begun() const { return begun_; }
  const Tree& tree() const { return tree_; }
  int64_t partial_steps() const { return steps_; }  // that the tree has taken

  // The token that the first choices lead to, which no step has computed yet: the root to begin with.
  struct Tip {
    int32_t token = -1;
    int64_t depth = 0;
  };
  // None: it is not worth keeping.
  std::optional<Tip> tip() const;
  // What a draft proposes to follow the tip, its root; lasts until the tip has been computed.
  void offer(const Tree& proposed);
  bool offered() const { return offered_; }

  // The first choices have come as far as the run goes: to a token that ends it, or to `most_depth`.
  bool finished(int64_t most_depth) const;

  // Adds the likeliest nodes that are not in the tree yet; they are to be computed: the tip and what a draft offered
  // after it, if they are among them, then the rest. Nothing is kept that is deeper than `most_depth`, and nothing is
  // computed at it, as nothing follows. Returns the first of them, or the tree's size if there are none. The first
  // call's is the root.
  int64_t extend(int64_t most_depth);
  // What a partial step said of nodes [first, size).
  void rank(int64_t first, const Ranked& ranked);
  // Of the step just ranked: the tip and what was offered after it, as far as it was computed, in order; its node i is
  // node first + i. And what of it the first choices led over. Empty: the tip was not computed.
  const Tree& drafted() const { return drafted_; }
  const Acceptance& followed() const { return followed_; }
  int64_t first_choices() const { return first_choices_; }  // nodes that have been followed, the root included

  // Makes the tree the one that a refresh is to judge: the likeliest of what has been computed and what has not.
  void fill(int64_t most_depth);

  // How many tokens a refresh is expected to confirm, and how many more after another partial step.
  double expected(int64_t most_depth);
  double predicted_growth(int64_t most_depth);

  // What the full KV said: samples of all nodes.
  struct Verdict {
    int64_t judged = 0;     // first choices that were looked at, each behind right ones
    int64_t rejected = 0;   // 1 if one was wrong
    int64_t recovered = 0;  // tokens committed beyond it
    // The depths, in their proposals, of committed tokens that a draft had offered where no partial step had found one
    // right. Until the next learn().
    std::span<const int32_t> accepted_depths{};
  };
  Verdict learn(std::span<const int32_t> samples, const Acceptance& acceptance);
  void clear() { begun_ = false; }

 private:
  static constexpr std::array<double, 6> kSharpness = {1, 2, 4, 8, 16, 32};
  struct Node {
    double share = 1;       // the chance that it is right, if its parent is
    double chance = 1;      // that the path to it is
    int32_t children = -1;  // the first of its ranked tokens in tokens_; -1: not computed
    // In the proposal that offered it, as long as no token of that depth was found right; 0: no draft did.
    int32_t offered_depth = 0;
  };
  // What may become a node: what a node ranked, or what a draft offered. Of equals the earlier kind comes first.
  enum class Kind : uint8_t { kTip, kRanked, kOffered };
  struct Candidate {
    int32_t token;
    int32_t from;  // the node that is its parent; of an offered one, its place in offer_
    double share, chance;
    Kind kind;
  };
  const Candidate* find_tip() const;
  int64_t tip_depth() const;
  bool ends(int32_t token) const;
  int64_t depth_of(const Candidate& candidate, int64_t tip) const;
  size_t bring_forward(int64_t count, int64_t last_depth);
  void drop_deeper(int64_t most_depth);
  int32_t add(const Candidate& candidate, int32_t parent);
  void add_offered(const Candidate& candidate);
  void add_first(size_t count);
  void drop_offer();
  void rank_node(int64_t node, int32_t sample, std::span<const int32_t> tokens, std::span<const float> log_probs);
  void update_chances();
  void follow(int64_t first, std::span<const int32_t> samples);
  void settle_depths(int64_t first);
  void keep_nodes(double least, int64_t ties);
  std::array<double, kRankedTokens> chances(int32_t ranked, double sharpness) const;
  double sharpness() const;
  double among_ranked() const { return 1 - missed_ / seen_; }

  const PendingTreeLimits limits_;
  const std::vector<int32_t> ends_;
  Tree tree_, offer_, drafted_;
  Acceptance followed_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;        // [computed nodes, kRankedTokens]
  std::vector<float> log_probs_;       // the same
  std::vector<Candidate> candidates_;  // not in the tree
  std::vector<int32_t> place_;         // scratch: where nodes of offer_, or of the tree before, stand
  std::vector<double> by_chance_;      // scratch
  std::vector<int32_t> accepted_depths_;
  int64_t computed_ = 0, steps_ = 0, first_choices_ = 0;
  bool begun_ = false, offered_ = false;
  bool ended_ = false;                                // the first choices, with a token that ends the run
  std::array<double, kSharpness.size()> evidence_{};  // log-likelihoods, decaying
  double seen_ = 20, missed_ = 1;                     // right tokens that were looked up, and not among the ranked
};

}  // namespace headrace
