#include "runtime/speculation/pending_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

namespace headrace {
namespace {

// What a partial step says of some nodes: tokens 100, 101, … with these log-probabilities, the first of them the
// sample.
struct Said {
  std::vector<int32_t> samples, tokens;
  std::vector<float> log_probs;

  void add(std::vector<float> row, int32_t first_token = 100) {
    row.resize(kRankedTokens, -60.0f);
    samples.push_back(first_token);
    for (int32_t i = 0; i < kRankedTokens; ++i) tokens.push_back(first_token + i);
    log_probs.insert(log_probs.end(), row.begin(), row.end());
  }
  Ranked ranked() const { return {.samples = samples, .tokens = tokens, .log_probs = log_probs}; }
};

void say(PendingTree* tree, int64_t first, const std::vector<float>& row) {
  Said said;
  for (int64_t i = first; i < tree->tree().size(); ++i) said.add(row);
  tree->rank(first, said.ranked());
}

int32_t deepest(const PendingTree& tree) {
  return *std::max_element(tree.tree().depths.begin(), tree.tree().depths.end());
}

TEST(PendingTree, TheFirstStepComputesTheRoot) {
  PendingTree tree({.width = 4, .nodes = 16});
  EXPECT_FALSE(tree.begun());
  tree.begin(7);
  EXPECT_TRUE(tree.begun());
  EXPECT_EQ(tree.extend(10), 0);
  EXPECT_EQ(tree.tree().tokens, std::vector<int32_t>{7});
  EXPECT_EQ(tree.partial_steps(), 0);
  say(&tree, 0, {0, -1});
  EXPECT_EQ(tree.partial_steps(), 1);
}

// Where the first choice is all but certain the tree is a chain; where the second is close, it is kept and continued.
TEST(PendingTree, GrowsWhereChoicesAreClose) {
  PendingTree sure({.width = 4, .grown = 64, .nodes = 64, .least = 0.01}), close = sure;
  for (PendingTree* tree : {&sure, &close}) tree->begin(7);
  for (int step = 0; step < 6; ++step) {
    const int64_t a = sure.extend(20), b = close.extend(20);
    say(&sure, a, {0, -5});
    say(&close, b, {0, -0.05f});
  }
  EXPECT_EQ(sure.tree().size(), 6);
  EXPECT_EQ(deepest(sure), 5);
  EXPECT_GT(close.tree().size(), 12);
  EXPECT_GT(sure.expected(20), close.expected(20) - 1);
  for (int32_t node = 1; node < close.tree().size(); ++node) {
    EXPECT_LT(close.tree().parents[static_cast<size_t>(node)], node);
  }
}

// No step computes more nodes than it may, none is deeper than asked for, and a refresh judges no more than it may.
TEST(PendingTree, StaysWithinItsLimits) {
  PendingTree tree({.width = 3, .grown = 20, .nodes = 24, .least = 1e-6});
  tree.begin(7);
  for (int step = 0; step < 12; ++step) {
    const int64_t before = tree.tree().size(), first = tree.extend(4);
    EXPECT_LE(tree.tree().size() - first, step == 0 ? 1 : 3);
    EXPECT_EQ(first, step == 0 ? 0 : before);
    EXPECT_LE(tree.tree().size(), 20);
    EXPECT_LT(deepest(tree), 4) << "nothing is computed that nothing may follow";
    if (tree.tree().size() > first) say(&tree, first, {0, -0.1f, -0.2f, -0.3f});
  }
  EXPECT_EQ(tree.predicted_growth(4, 0), 0);
  tree.fill(4);
  EXPECT_EQ(tree.tree().size(), 24);
  EXPECT_EQ(deepest(tree), 4);
}

// The growth that is predicted is the growth that comes.
TEST(PendingTree, ForetellsItsGrowth) {
  PendingTree tree({.width = 5, .grown = 100, .nodes = 512, .least = 1e-9});
  tree.begin(7);
  say(&tree, tree.extend(30), {0, -0.2f});
  for (int step = 0; step < 8; ++step) {
    const double before = tree.expected(30), growth = tree.predicted_growth(30, 0);
    EXPECT_GT(growth, 0);
    say(&tree, tree.extend(30), {0, -0.2f, -0.9f});
    EXPECT_NEAR(tree.expected(30), before + growth, 1e-6);
  }
}

// Where steps have advanced the first choices by more than is in sight, the next one is taken to do so as well.
TEST(PendingTree, ForetellsNoLessThanStepsHaveBrought) {
  PendingTree tree({.width = 5, .grown = 8, .nodes = 8, .least = 0.01});
  tree.begin(7);
  EXPECT_GE(tree.predicted_growth(30, 2.5), 2.5);
  say(&tree, tree.extend(30), {0, -9});
  const double chance = tree.tip()->chance;
  EXPECT_GT(chance, 0.9);
  EXPECT_LT(tree.predicted_growth(30, 0), 1);
  EXPECT_DOUBLE_EQ(tree.predicted_growth(30, 2.5), 2.5 * chance);
  EXPECT_EQ(tree.predicted_growth(1, 2.5), 0) << "the tip is at the end of the run";
  while (tree.tree().size() < 8) say(&tree, tree.extend(30), {0, -9});
  EXPECT_EQ(tree.predicted_growth(30, 2.5), 0) << "a refresh judges no more";
}

// What is believed before the first refresh: how sharp ranks are, and how often the correct token is not among them.
TEST(PendingTree, BelievesItsLimitsUntilRefreshesShowOthers) {
  const auto expected = [](const PendingTreeLimits& limits, float second) {
    PendingTree tree(limits);
    tree.begin(7);
    for (int step = 0; step < 40; ++step) say(&tree, tree.extend(100), {0, second});
    return tree.expected(100);
  };
  const PendingTreeLimits usual{.width = 1, .grown = 64, .nodes = 64, .least = 1e-6};
  PendingTreeLimits sure = usual;
  sure.unranked = 0.0005;
  EXPECT_LT(expected(usual, -9), 20);
  EXPECT_GT(expected(sure, -9), 40);
  PendingTreeLimits sharp = sure;
  sharp.sharpness = 32;
  EXPECT_GT(expected(sharp, -0.2f), expected(sure, -0.2f) + 5);
}

// A draft's tree: token 100 + d at depth d leads on, with a second choice beside it.
Tree proposal(int32_t root, int levels) {
  Tree tree;
  tree.reset(root);
  tree.scores = {0};
  int32_t parent = 0;
  for (int level = 1; level <= levels; ++level) {
    const float above = tree.scores[static_cast<size_t>(parent)];
    const int32_t next = tree.add(100, parent);
    tree.scores.push_back(above - 0.1f);
    tree.add(101, parent);
    tree.scores.push_back(above - 2.5f);
    parent = next;
  }
  return tree;
}

// What a draft offers is computed with the root, and where the first choices agree one step takes them all.
TEST(PendingTree, TakesWhatADraftOffers) {
  PendingTree tree({.width = 16, .grown = 200, .nodes = 200, .least = 1e-3});
  tree.begin(7);
  EXPECT_EQ(tree.tip()->token, 7);
  EXPECT_EQ(tree.tip()->depth, 0);
  tree.offer(proposal(7, 3));
  EXPECT_TRUE(tree.offered());
  EXPECT_EQ(tree.extend(20), 0);
  EXPECT_EQ(tree.tree().tokens, (std::vector<int32_t>{7, 100, 100, 100, 101, 101, 101}));
  EXPECT_EQ(tree.drafted().tokens, tree.tree().tokens);
  EXPECT_EQ(tree.drafted().scores.size(), 7u);
  say(&tree, 0, {0, -1});  // 100 after each
  EXPECT_EQ(tree.followed().nodes, (std::vector<int32_t>{0, 1, 2, 3}));
  EXPECT_EQ(tree.last_choice(), 3);
  EXPECT_EQ(tree.followed().next, 100);
  EXPECT_EQ(tree.first_choices(), 4);
  EXPECT_FALSE(tree.offered());
  EXPECT_EQ(tree.tip()->depth, 4);

  // No node stands twice: a second choice that the draft had offered is not a candidate again.
  tree.offer(proposal(100, 2));
  const int64_t first = tree.extend(20);
  EXPECT_EQ(first, 7);
  EXPECT_EQ(tree.tree().parents[7], 3);  // the tip comes first
  EXPECT_EQ(tree.tree().depths[7], 4);
  EXPECT_EQ(tree.drafted().parents[1], 0);
  std::vector<std::pair<int32_t, int32_t>> children;
  for (size_t i = 1; i < tree.tree().tokens.size(); ++i) {
    children.push_back({tree.tree().parents[i], tree.tree().tokens[i]});
  }
  std::sort(children.begin(), children.end());
  EXPECT_EQ(std::adjacent_find(children.begin(), children.end()), children.end());
  EXPECT_LE(tree.tree().size() - first, 16);
}

// What a draft guessed otherwise than the partial KV is worth little, and leaves room in the tree that is judged.
TEST(PendingTree, KeepsTheLikeliestForTheRefresh) {
  PendingTree tree({.width = 16, .grown = 200, .nodes = 5, .least = 1e-6});
  tree.begin(7);
  Tree wrong;
  wrong.reset(7);
  wrong.scores = {0};
  for (int32_t i = 0; i < 4; ++i) {
    wrong.add(900 + i, 0);
    wrong.scores.push_back(-1.4f);
  }
  tree.offer(wrong);
  tree.extend(20);
  say(&tree, 0, {0, -0.3f});
  EXPECT_EQ(tree.followed().nodes, std::vector<int32_t>{0});
  EXPECT_EQ(tree.tip()->token, 100);
  EXPECT_EQ(tree.tip()->depth, 1);
  tree.fill(20);
  const std::vector<int32_t>& tokens = tree.tree().tokens;
  EXPECT_EQ(tokens.size(), 5u);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 100), 1);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 101), 1);
  for (size_t i = 1; i < tokens.size(); ++i) EXPECT_EQ(tree.tree().parents[i], 0);
  // The refresh's samples are of the tree as it is now.
  std::vector<int32_t> samples(tokens.size(), 5);
  samples[0] = 101;
  Acceptance acceptance;
  accept(tree.tree(), samples, &acceptance);
  EXPECT_EQ(acceptance.nodes.size(), 2u);
  const PendingTree::Verdict verdict = tree.learn(samples, acceptance);
  EXPECT_EQ(verdict.rejected, 1);
  EXPECT_EQ(verdict.recovered, 1);
}

// A chain of `levels` tokens, each with a sibling; `score` gives a child's score from its parent's.
template <typename Score>
Tree chain_scored(int32_t root, int levels, float top, const Score& score) {
  Tree tree;
  tree.reset(root);
  tree.scores = {0};
  int32_t parent = 0;
  for (int level = 0; level < levels; ++level) {
    const float here = level == 0 ? top : score(tree.scores[static_cast<size_t>(parent)]);
    const int32_t next = tree.add(100, parent);
    tree.add(101, parent);
    tree.scores.insert(tree.scores.end(), {here, here});
    parent = next;
  }
  return tree;
}

// A draft's scores come with rounding errors, and from models that may compute anything. Whatever they are, no child is
// added before its parent: by steps of every width, behind the root and behind a tip, and by a refresh.
TEST(PendingTree, NoScoreLetsAChildBeforeItsParent) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::pair<float, std::function<float(float)>>> kinds = {
      {-0.5f, [](float above) { return std::nextafter(above, kInf); }},  // one ulp above the parent
      {-0.5f, [](float above) { return above + 0.25f; }},                // up to chances above 1
      {-0.5f, [](float above) { return above; }},
      {-0.5f, [](float) { return kNan; }},
      {kNan, [](float) { return -0.5f; }},
      {-0.5f, [](float above) { return above == kInf ? -0.1f : kInf; }},
      {-kInf, [](float) { return -0.1f; }},
      {-0.5f, [](float above) { return std::isfinite(above) ? -kInf : -0.1f; }},
      {-90.0f, [](float above) { return above - 90; }},  // chances of 0 by underflow
      {0.0f, [](float above) { return above - 1e-7f; }},
  };
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    for (const int64_t width : {1, 2, 3, 4, 7, 48}) {
      for (const bool behind_a_tip : {false, true}) {
        SCOPED_TRACE(str("kind ", kind, " width ", width, " behind a tip ", behind_a_tip));
        PendingTree tree({.width = width, .grown = 200, .nodes = 9, .least = 0});
        tree.begin(7);
        if (behind_a_tip) say(&tree, tree.extend(80), {0, -1});
        const Tree offer = chain_scored(behind_a_tip ? 100 : 7, 40, kinds[kind].first, kinds[kind].second);
        tree.offer(offer);
        PendingTree stepping = tree;
        tree.fill(80);
        EXPECT_EQ(tree.tree().size(), 9);
        for (int step = 0; step < 4; ++step) say(&stepping, stepping.extend(80), {0, -1});
        EXPECT_FALSE(stepping.offered());
        EXPECT_LE(stepping.expected(80), 9.0 + 1e-9);
      }
    }
  }
}

// The same holds for what the partial KV ranked: logits that are not finite, or not in order.
TEST(PendingTree, NoLogitLetsAChildBeforeItsParent) {
  constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::vector<float>> rows = {{0, kNan},    {kNan, 0},      {-kInf, 0, 0}, {kInf, 0},
                                                {kInf, kInf}, {-kInf, -kInf}, {0, 500, 900}, {0, 0, 0, 0}};
  for (size_t kind = 0; kind < rows.size(); ++kind) {
    SCOPED_TRACE(str("kind ", kind));
    PendingTree tree({.width = 4, .grown = 64, .nodes = 12, .least = 0});
    tree.begin(7);
    for (int step = 0; step < 6; ++step) say(&tree, tree.extend(20), rows[kind]);
    const double expected = tree.expected(20);
    EXPECT_GT(expected, 0);
    EXPECT_LE(expected, 12);
    tree.fill(20);
    EXPECT_LE(tree.tree().size(), 12);
  }
}

// A tip that is not worth the coming step keeps what was offered, for a later one or for the refresh.
TEST(PendingTree, AnOfferWaitsForItsTip) {
  PendingTree tree({.width = 1, .grown = 200, .nodes = 8, .least = 1e-3});
  tree.begin(7);
  say(&tree, tree.extend(20), {0, -0.05f});  // two choices, nearly alike
  say(&tree, tree.extend(20), {0, -0.05f});  // after the first of them
  ASSERT_EQ(tree.tip()->depth, 2);
  tree.offer(proposal(100, 2));
  const int64_t first = tree.extend(20);
  EXPECT_EQ(tree.tree().tokens.back(), 101);  // the root's second choice is likelier than the tip
  EXPECT_EQ(tree.tree().depths.back(), 1);
  say(&tree, first, {0, -3});
  EXPECT_TRUE(tree.followed().nodes.empty());
  EXPECT_TRUE(tree.offered());
  PendingTree later = tree;
  tree.fill(20);
  EXPECT_EQ(tree.tree().size(), 8);
  EXPECT_EQ(deepest(tree), 4);  // the offer's, behind the tip
  for (int step = 0; step < 9 && later.offered(); ++step) say(&later, later.extend(20), {0, -3});
  EXPECT_FALSE(later.offered());
  EXPECT_EQ(later.followed().nodes, std::vector<int32_t>{0});
}

// As many nodes as a refresh judges, also where all are as likely.
TEST(PendingTree, JudgesNoMoreThanItMay) {
  PendingTree tree({.width = 1, .grown = 200, .nodes = 3, .least = 1e-6});
  tree.begin(7);
  for (int step = 0; step < 6; ++step) say(&tree, tree.extend(20), {0, -60});
  tree.fill(20);
  EXPECT_EQ(tree.tree().size(), 3);
}

// A tip that is not worth keeping has none.
TEST(PendingTree, ATipMayGo) {
  PendingTree tree({.width = 4, .grown = 200, .nodes = 200, .least = 0.3});
  tree.begin(7);
  say(&tree, tree.extend(20), {0, -0.05f});
  for (int step = 0; step < 20 && tree.tip(); ++step) say(&tree, tree.extend(20), {0, -0.05f});
  EXPECT_FALSE(tree.tip().has_value());
  EXPECT_EQ(tree.extend(20), tree.tree().size());
  EXPECT_EQ(tree.predicted_growth(20, 0), 0);
}

constexpr int32_t kEnd = 100;  // what say() has first

// What ends the run is no node, and has none behind it: of what is ranked, and of what a draft offers.
TEST(PendingTree, NothingFollowsTheEnd) {
  PendingTree tree({.width = 16, .grown = 200, .nodes = 200, .least = 1e-3}, {kEnd, 555});
  tree.begin(7);
  tree.offer(proposal(7, 3));  // 100, and 101 beside it, level after level
  EXPECT_EQ(tree.extend(20), 0);
  EXPECT_EQ(tree.tree().tokens, (std::vector<int32_t>{7, 101}));
  EXPECT_EQ(tree.tree().parents[1], 0);
  EXPECT_FALSE(tree.finished(20));
  say(&tree, 0, {0, -0.1f, -0.2f});  // the first choice is the end, at the root and behind 101
  EXPECT_TRUE(tree.finished(20));
  EXPECT_FALSE(tree.tip().has_value());
  for (int step = 0; step < 5; ++step) {
    const int64_t first = tree.extend(20);
    if (first == tree.tree().size()) break;
    say(&tree, first, {0, -0.1f, -0.2f});
  }
  tree.fill(20);
  const std::vector<int32_t>& tokens = tree.tree().tokens;
  EXPECT_GT(tokens.size(), 5u);  // the second and third choices, which are no ends
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), kEnd), 0);

  // The full KV's end is right where the partial KV's was, though it is no node.
  std::vector<int32_t> samples(tokens.size(), kEnd);
  Acceptance acceptance;
  accept(tree.tree(), samples, &acceptance);
  EXPECT_EQ(acceptance.nodes, std::vector<int32_t>{0});
  EXPECT_EQ(acceptance.next, kEnd);
  const PendingTree::Verdict verdict = tree.learn(samples, acceptance);
  EXPECT_EQ(verdict.judged, 1);
  EXPECT_EQ(verdict.rejected, 0);
}

// An end in the middle of what a draft offers takes what is behind it along, and nothing else.
TEST(PendingTree, AnOfferIsCutAtTheEnd) {
  PendingTree tree({.width = 16, .grown = 200, .nodes = 200, .least = 1e-6}, {900});
  tree.begin(7);
  Tree offer;
  offer.reset(7);
  const int32_t right = offer.add(100, 0), end = offer.add(900, right), beside = offer.add(101, right);
  offer.add(100, end);
  offer.add(100, beside);
  offer.scores = {0, -0.1f, -0.2f, -0.3f, -0.4f, -0.5f};
  tree.offer(offer);
  tree.extend(20);
  EXPECT_EQ(tree.tree().tokens, (std::vector<int32_t>{7, 100, 101, 100}));
  EXPECT_EQ(tree.tree().parents, (std::vector<int32_t>{-1, 0, 1, 2}));
  EXPECT_EQ(tree.drafted().tokens, tree.tree().tokens);
}

// Where the run has room for three more tokens, the third is not computed: the refresh alone looks at it.
TEST(PendingTree, StopsWhereTheRunHasNoRoom) {
  PendingTree tree({.width = 1, .grown = 50, .nodes = 50, .least = 0.2});
  tree.begin(7);
  int steps = 0;
  for (; !tree.finished(3) && steps < 10; ++steps) say(&tree, tree.extend(3), {0, -9});
  EXPECT_EQ(steps, 3);  // the root, and the first two
  EXPECT_EQ(tree.predicted_growth(3, 0), 0);
  EXPECT_EQ(tree.extend(3), tree.tree().size());
  tree.fill(3);
  EXPECT_EQ(tree.tree().depths, (std::vector<int32_t>{0, 1, 2, 3}));
}

std::vector<int32_t> accepted_depths(PendingTree* tree, const std::vector<int32_t>& samples) {
  Acceptance acceptance;
  accept(tree->tree(), samples, &acceptance);
  const std::span<const int32_t> depths = tree->learn(samples, acceptance).accepted_depths;
  return {depths.begin(), depths.end()};
}

// What a draft offered last and no step computed is the draft's when a refresh finds it right.
TEST(PendingTree, SaysWhatTheDraftGaveTheRefresh) {
  PendingTree tree({.width = 16, .grown = 200, .nodes = 200, .least = 1e-3});
  tree.begin(7);
  say(&tree, tree.extend(20), {0, -5});
  tree.offer(proposal(100, 3));
  tree.fill(20);
  const std::vector<int32_t> samples(static_cast<size_t>(tree.tree().size()), 100);
  Acceptance acceptance;
  accept(tree.tree(), samples, &acceptance);
  ASSERT_EQ(acceptance.nodes.size(), 5u);  // the root, the tip, three that were offered
  EXPECT_EQ(accepted_depths(&tree, samples), (std::vector<int32_t>{1, 2, 3}));
}

// A depth of a proposal counts once, in the first step that finds a token of it right, and as the depth of the proposal
// that it is of: the tree's own depths are others.
TEST(PendingTree, ADepthOfAProposalIsAcceptedOnce) {
  const auto grown = [](int32_t chosen) {  // by the partial KV, after the first token of the second proposal
    PendingTree tree({.width = 16, .grown = 200, .nodes = 200, .least = 1e-9});
    tree.begin(7);
    tree.offer(proposal(7, 1));
    say(&tree, tree.extend(20), {0, -1});
    EXPECT_EQ(tree.tip()->depth, 2);
    tree.offer(proposal(100, 3));
    const int64_t first = tree.extend(20);
    Said said;
    for (int64_t i = first; i < tree.tree().size(); ++i) said.add({0, -1}, tree.tree().depths[i] == 3 ? chosen : 100);
    tree.rank(first, said.ranked());
    EXPECT_EQ(tree.followed().nodes.size(), chosen == 100 ? 4u : 2u);
    tree.fill(20);
    return tree;
  };
  PendingTree followed = grown(100), left = grown(300), rejected = left;
  std::vector<int32_t> right(static_cast<size_t>(followed.tree().size()), 100);
  EXPECT_EQ(accepted_depths(&followed, right), std::vector<int32_t>{});  // the partial step has found them all
  right.resize(static_cast<size_t>(left.tree().size()), 100);
  EXPECT_EQ(accepted_depths(&left, right), (std::vector<int32_t>{2, 3}));
  right[0] = 101;  // another token of depth 1
  EXPECT_EQ(accepted_depths(&rejected, right), std::vector<int32_t>{});
}

// Filters may make another token the sample than the one that ranks first: it leads then, and no token stands twice.
TEST(PendingTree, TheSampleLeads) {
  PendingTree tree({.width = 8, .grown = 9, .nodes = 9, .least = 1e-9});
  tree.begin(7);
  tree.extend(3);
  Said said;
  said.add({0, -0.1f, -0.2f});
  said.samples[0] = 102;
  tree.rank(0, said.ranked());
  tree.extend(3);
  const std::vector<int32_t>& tokens = tree.tree().tokens;
  ASSERT_GE(tokens.size(), 3u);
  EXPECT_EQ(tokens[1], 102);
  EXPECT_EQ(tokens[2], 100);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 102), 1);
}

TEST(PendingTree, SaysWhatWasOverturnedAndRescued) {
  PendingTree tree({.width = 2, .grown = 30, .nodes = 30, .least = 1e-4});
  tree.begin(7);
  for (int step = 0; step < 4; ++step) say(&tree, tree.extend(10), {0, -0.01f});
  // The full KV takes the second choice at the root, then the first ones.
  std::vector<int32_t> samples(static_cast<size_t>(tree.tree().size()), 100);
  samples[0] = 101;
  Acceptance acceptance;
  accept(tree.tree(), samples, &acceptance);
  const PendingTree::Verdict verdict = tree.learn(samples, acceptance);
  EXPECT_EQ(verdict.judged, 1);
  EXPECT_EQ(verdict.rejected, 1);
  EXPECT_EQ(verdict.recovered, static_cast<int64_t>(acceptance.nodes.size()) - 1);
  EXPECT_GT(verdict.recovered, 0);
}

std::vector<int32_t> path_to(const Tree& tree, int64_t node) {
  std::vector<int32_t> path;
  for (int32_t at = static_cast<int32_t>(node); at >= 0; at = tree.parents[static_cast<size_t>(at)]) {
    path.push_back(tree.tokens[static_cast<size_t>(at)]);
  }
  return path;
}

// Dice: the full KV's choice is the partial one's with noise of a known size. What the tree expects comes to be what it
// gets, however sharp its first guess was.
TEST(PendingTree, LearnsHowSureItMayBe) {
  std::mt19937 random(5);
  std::extreme_value_distribution<double> gumbel(0.0, 1.0);
  for (const double size : {0.1, 0.5}) {
    std::normal_distribution<double> noise(0.0, size);
    PendingTree tree({.width = 16, .grown = 200, .nodes = 512, .least = 0.005});
    double expected = 0, got = 0;
    for (int refresh = 0; refresh < 120; ++refresh) {
      tree.begin(1);
      std::map<std::vector<int32_t>, int32_t> truths;  // by a node's path, as fill() orders the nodes anew
      for (int step = 0; step < 12; ++step) {
        const int64_t first = tree.extend(40);
        Said said;
        for (int64_t node = first; node < tree.tree().size(); ++node) {
          std::vector<std::pair<double, int32_t>> scores;
          for (int32_t token = 0; token < 40; ++token) scores.push_back({gumbel(random), token});
          std::sort(scores.rbegin(), scores.rend());
          double best = -1e9;
          int32_t right = 0;
          for (auto& [score, token] : scores) {
            const double full = score + noise(random);
            if (full > best) best = full, right = token;
          }
          truths[path_to(tree.tree(), node)] = right;
          said.samples.push_back(scores[0].second);
          for (size_t i = 0; i < kRankedTokens; ++i) {
            said.tokens.push_back(scores[i].second);
            said.log_probs.push_back(static_cast<float>(scores[i].first));
          }
        }
        tree.rank(first, said.ranked());
      }
      const double predicted = tree.expected(40);
      tree.fill(40);
      std::vector<int32_t> truth;
      for (int64_t node = 0; node < tree.tree().size(); ++node) {
        const auto found = truths.find(path_to(tree.tree(), node));
        truth.push_back(found == truths.end() ? -1 : found->second);
      }
      Acceptance acceptance;
      accept(tree.tree(), truth, &acceptance);
      if (refresh >= 20) {
        expected += predicted;
        got += static_cast<double>(acceptance.nodes.size());
      }
      tree.learn(truth, acceptance);
    }
    EXPECT_NEAR(expected / got, 1.0, 0.15) << size;
    EXPECT_GT(got / 100, size < 0.3 ? 9.0 : 4.0) << size;
  }
}

}  // namespace
}  // namespace headrace
