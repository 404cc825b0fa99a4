// The tree of pending tokens of a lossless run whose refreshes stream. Partial steps add several tokens each, and a
// refresh confirms the correct path. A refresh is bound by the link, so it verifies hundreds of nodes for the cost of
// one. Where the partial KV's first choice is wrong, the second or third is often correct; keeping and continuing those
// confirms more tokens than a chain (EAGLE-2 section 4: the most likely nodes first; the "draft" is the target with its
// partial KV). A draft, if there is one, continues the first choices; its wrong guesses stay beside them.
//
// A partial step ranks the likeliest tokens after each node by logit / T plus the sampler's noise (docs/design.md,
// section 6, rule 3). The full KV's logits differ slightly; how much is learned from what refreshes confirm: the chance
// that a child is correct is the softmax of its node's ranks, at the sharpness that has predicted best so far. A token
// that ends the run is not a node: nothing follows it, and the sample at its parent shows whether it is correct.
//
// Pure: it knows no model, device or clock. Thread: one.
// Call order: begin(); for each partial step offer() (if a draft has proposed a tree), extend(), rank(); before a
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

constexpr int64_t kRankedTokens = 8;  // per node

struct PendingTreeLimits {
  int64_t width = 48;             // most nodes that a partial step computes
  int64_t grown = kMaxPassNodes;  // most nodes that partial steps compute between two refreshes
  int64_t nodes = kMaxPassNodes;  // most nodes that a refresh judges
  double least = 0.002;           // nodes with a lower chance are dropped
  // Initial values, until refreshes show others: how sharply the partial KV's ranks separate the correct token from the
  // rest, and the share of correct tokens that are not among the ranked ones.
  double sharpness = 8;
  double unranked = 0.05;
  bool operator==(const PendingTreeLimits&) const = default;
};

// Ranked tokens after some nodes: [nodes, kRankedTokens], best first; and [nodes] the partial KV's sample after each,
// which filters may make different from the best.
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
  int64_t partial_steps() const { return steps_; }  // taken by this tree

  // The token after the first choices that no step has computed yet; initially the root.
  struct Tip {
    int32_t token = -1;
    int64_t depth = 0;
    double chance = 1;  // that it is correct
  };
  // None: its chance is too low.
  std::optional<Tip> tip() const;
  // A draft's proposal to follow the tip, its root; valid until the tip is computed.
  void offer(const Tree& proposed);
  bool offered() const { return offered_; }

  // Whether the first choices have reached the end of the run: a token that ends it, or `most_depth`.
  bool finished(int64_t most_depth) const;

  // Adds the likeliest nodes that the tree lacks, for the next partial step to compute: first, if selected, the tip and
  // the draft's tokens after it, then the others. Nodes deeper than `most_depth` are dropped, and nodes at it are not
  // computed, because nothing follows them. Returns the first added node, or the tree's size if there is none. The
  // first call adds the root.
  int64_t extend(int64_t most_depth);
  // The partial step's results for nodes [first, size).
  void rank(int64_t first, const Ranked& ranked);
  // The tip and the offered tokens after it that the last ranked step computed, in order; node i is the tree's node
  // first + i. Empty: the step did not compute the tip.
  const Tree& drafted() const { return drafted_; }
  const Acceptance& followed() const { return followed_; }
  int64_t first_choices() const { return first_choices_; }  // nodes along the first choices, the root included
  int32_t last_choice() const { return last_choice_; }      // the last of them; -1: none. Valid until fill()

  // Turns the tree into the one for a refresh to judge: the likeliest nodes, computed or not.
  void fill(int64_t most_depth);

  // The number of tokens that a refresh is expected to confirm, and the increase after another partial step, where a
  // step has advanced the first choices by `step_tokens` on the average.
  double expected(int64_t most_depth);
  double predicted_growth(int64_t most_depth, double step_tokens);

  // The refresh's decisions, from the full KV's samples of all nodes.
  struct Verdict {
    int64_t judged = 0;     // first choices that were judged, each after correct ones
    int64_t rejected = 0;   // 1 if one was wrong
    int64_t recovered = 0;  // tokens committed beyond it
    // Depths, within their proposals, of committed tokens that a draft had offered before a partial step found them.
    // Valid until the next learn().
    std::span<const int32_t> accepted_depths{};
  };
  Verdict learn(std::span<const int32_t> samples, const Acceptance& acceptance);
  void clear() { begun_ = false; }

 private:
  static constexpr std::array<double, 10> kSharpness = {1, 2, 4, 8, 12, 16, 24, 32, 48, 64};
  struct Node {
    double share = 1;       // the chance that it is correct if its parent is
    double chance = 1;      // the chance that the path to it is correct
    int32_t children = -1;  // the first of its ranked tokens in tokens_; -1: not computed
    // The depth in the proposal that offered it, until a token of that depth is accepted; 0: not offered.
    int32_t offered_depth = 0;
  };
  // Candidates for nodes: tokens ranked after a node, or offered by a draft. On a tie the earlier kind comes first.
  enum class Kind : uint8_t { kTip, kRanked, kOffered };
  struct Candidate {
    int32_t token;
    int32_t from;  // the parent node; for an offered token, its index in offer_
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
  std::vector<Candidate> candidates_;  // not yet in the tree
  std::vector<int32_t> place_;         // scratch: new indices of nodes of offer_, or of the previous tree
  std::vector<double> by_chance_;      // scratch
  std::vector<int32_t> accepted_depths_;
  int64_t computed_ = 0, steps_ = 0, first_choices_ = 0;
  int32_t last_choice_ = -1;
  bool begun_ = false, offered_ = false;
  bool ended_ = false;                                // the first choices reached a token that ends the run
  std::array<double, kSharpness.size()> evidence_{};  // log-likelihoods with decay
  double seen_ = 20, missed_;  // correct tokens that were looked up, and those not among the ranked
};

}  // namespace headrace
