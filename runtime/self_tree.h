// The tree of pending tokens when the target guesses for itself (--spec-type none): partial steps grow it, several
// tokens a step, and a refresh confirms the path that is right. A refresh is bound by the link, so that it judges a
// tree of some hundred nodes for the price of one; and where the partial KV's first choice is wrong, its second or
// third is often right: with those kept and continued, a refresh confirms more than a chain would give it (EAGLE-2
// section 4: the most likely nodes first; the "draft" is the target with its partial KV).
//
// A partial step ranks the likeliest tokens after each node by logit / T plus the sampler's own noise (DESIGN section
// 6, rule 3). The full KV's logits differ a little; how little is learned from what refreshes confirm: the chance that
// a child is right is the softmax of its node's ranks at the sharpness that has foretold them best. Pure: it knows no
// model, no device and no clock. Thread: one.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/accept.h"
#include "runtime/tree.h"

namespace headrace {

constexpr int64_t kSelfRanked = 8;  // tokens ranked after a node

struct SelfTreeLimits {
  int64_t width = 32;             // nodes that a partial step computes at most
  int64_t nodes = kMaxPassNodes;  // that a refresh judges at most
  double least = 0.002;           // a node that is right less often is not kept
};

// What is ranked after some nodes: [nodes, kSelfRanked], best first; and [nodes] the sample after each by the partial
// KV, which filters may have made another than the best.
struct Ranked {
  std::span<const int32_t> samples, tokens;
  std::span<const float> log_probs;
};

class SelfTree {
 public:
  explicit SelfTree(const SelfTreeLimits& limits);

  void begin(int32_t root);
  bool begun() const { return begun_; }
  const Tree& tree() const { return tree_; }
  int64_t deepest() const { return deepest_; }
  int64_t partial_steps() const { return steps_; }  // that the tree has taken

  // Adds the likeliest nodes that are not in the tree yet, none deeper than `most_depth`; they are to be computed.
  // Returns the first of them, or the tree's size if there are none. The first call's is the root.
  int64_t extend(int64_t most_depth);
  // What a partial step said of nodes [first, size).
  void rank(int64_t first, const Ranked& ranked);
  // Fills the tree for a refresh with nodes that were not computed.
  void fill(int64_t most_depth);

  // How many tokens a refresh is expected to confirm, and how many more after another partial step.
  double expected() const { return expected_; }
  double foretold_growth(int64_t most_depth);

  // What the full KV said: samples of all nodes.
  struct Verdict {
    int64_t judged = 0;      // first choices that were looked at, each behind right ones
    int64_t overturned = 0;  // 1 if one was wrong
    int64_t rescued = 0;     // tokens confirmed beyond it
  };
  Verdict learn(std::span<const int32_t> samples, const Acceptance& acceptance);
  void clear() { begun_ = false; }

 private:
  static constexpr std::array<double, 6> kSharpness = {1, 2, 4, 8, 16, 32};
  struct Node {
    double chance = 1;      // that the path to it is right
    int32_t children = -1;  // the first of its ranked tokens in tokens_; -1: not computed
  };
  struct Candidate {
    int32_t token, parent;
    double chance;
  };
  size_t bring_forward(int64_t count, int64_t most_depth);
  int64_t add_best(int64_t count, int64_t most_depth);
  std::array<double, kSelfRanked> chances(int32_t ranked, double sharpness) const;
  double sharpness() const;

  const SelfTreeLimits limits_;
  Tree tree_;
  std::vector<Node> nodes_;
  std::vector<int32_t> tokens_;        // [computed nodes, kSelfRanked]
  std::vector<float> log_probs_;       // the same
  std::vector<Candidate> candidates_;  // not in the tree
  int64_t deepest_ = 0, computed_ = 0, steps_ = 0;
  double expected_ = 1;
  bool begun_ = false;
  std::array<double, kSharpness.size()> evidence_{};  // log-likelihoods, decaying
  double seen_ = 20, missed_ = 1;                     // right tokens that were looked up, and not among the ranked
};

}  // namespace headrace
