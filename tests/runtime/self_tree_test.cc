#include "runtime/self_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
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
    row.resize(kSelfRanked, -60.0f);
    samples.push_back(first_token);
    for (int32_t i = 0; i < kSelfRanked; ++i) tokens.push_back(first_token + i);
    log_probs.insert(log_probs.end(), row.begin(), row.end());
  }
  Ranked ranked() const { return {.samples = samples, .tokens = tokens, .log_probs = log_probs}; }
};

void say(SelfTree* tree, int64_t first, const std::vector<float>& row) {
  Said said;
  for (int64_t i = first; i < tree->tree().size(); ++i) said.add(row);
  tree->rank(first, said.ranked());
}

TEST(SelfTree, TheFirstStepComputesTheRoot) {
  SelfTree tree({.width = 4, .nodes = 16});
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
TEST(SelfTree, GrowsWhereChoicesAreClose) {
  SelfTree sure({.width = 4, .nodes = 64, .least = 0.01}), close = sure;
  for (SelfTree* tree : {&sure, &close}) tree->begin(7);
  for (int step = 0; step < 6; ++step) {
    const int64_t a = sure.extend(20), b = close.extend(20);
    say(&sure, a, {0, -5});
    say(&close, b, {0, -0.05f});
  }
  EXPECT_EQ(sure.tree().size(), 6);
  EXPECT_EQ(sure.deepest(), 5);
  EXPECT_GT(close.tree().size(), 12);
  EXPECT_GT(sure.expected(), close.expected() - 1);
  for (int32_t node = 1; node < close.tree().size(); ++node) {
    EXPECT_LT(close.tree().parents[static_cast<size_t>(node)], node);
  }
}

// No step computes more nodes than it may, none is deeper than asked for, and a refresh judges no more than it may.
TEST(SelfTree, StaysWithinItsLimits) {
  SelfTree tree({.width = 3, .nodes = 20, .least = 1e-6});
  tree.begin(7);
  for (int step = 0; step < 12; ++step) {
    const int64_t before = tree.tree().size(), first = tree.extend(4);
    EXPECT_LE(tree.tree().size() - first, step == 0 ? 1 : 3);
    EXPECT_EQ(first, step == 0 ? 0 : before);
    EXPECT_LE(tree.tree().size(), 20);
    EXPECT_LE(tree.deepest(), 4);
    if (tree.tree().size() > first) say(&tree, first, {0, -0.1f, -0.2f, -0.3f});
  }
  tree.fill(4);
  EXPECT_EQ(tree.tree().size(), 20);
  EXPECT_EQ(tree.foretold_growth(4), 0);
}

// The growth that is foretold is the growth that comes.
TEST(SelfTree, ForetellsItsGrowth) {
  SelfTree tree({.width = 5, .nodes = 100, .least = 1e-4});
  tree.begin(7);
  say(&tree, tree.extend(30), {0, -0.2f});
  for (int step = 0; step < 8; ++step) {
    const double before = tree.expected(), growth = tree.foretold_growth(30);
    EXPECT_GT(growth, 0);
    const int64_t first = tree.extend(30);
    EXPECT_NEAR(tree.expected(), before + growth, 1e-12);
    say(&tree, first, {0, -0.2f, -0.9f});
  }
}

// Filters may make another token the sample than the one that ranks first: it leads then, and no token stands twice.
TEST(SelfTree, TheSampleLeads) {
  SelfTree tree({.width = 8, .nodes = 9, .least = 1e-9});
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

TEST(SelfTree, SaysWhatWasOverturnedAndRescued) {
  SelfTree tree({.width = 2, .nodes = 30, .least = 1e-4});
  tree.begin(7);
  for (int step = 0; step < 4; ++step) say(&tree, tree.extend(10), {0, -0.01f});
  // The full KV takes the second choice at the root, then the first ones.
  std::vector<int32_t> samples(static_cast<size_t>(tree.tree().size()), 100);
  samples[0] = 101;
  Acceptance acceptance;
  accept(tree.tree(), samples, &acceptance);
  const SelfTree::Verdict verdict = tree.learn(samples, acceptance);
  EXPECT_EQ(verdict.judged, 1);
  EXPECT_EQ(verdict.overturned, 1);
  EXPECT_EQ(verdict.rescued, static_cast<int64_t>(acceptance.nodes.size()) - 1);
  EXPECT_GT(verdict.rescued, 0);
}

// Dice: the full KV's choice is the partial one's with noise of a known size. What the tree expects comes to be what it
// gets, however sharp its first guess was.
TEST(SelfTree, LearnsHowSureItMayBe) {
  std::mt19937 random(5);
  std::extreme_value_distribution<double> gumbel(0.0, 1.0);
  for (const double size : {0.1, 0.5}) {
    std::normal_distribution<double> noise(0.0, size);
    SelfTree tree({.width = 16, .nodes = 200, .least = 0.005});
    double expected = 0, got = 0;
    for (int refresh = 0; refresh < 120; ++refresh) {
      tree.begin(1);
      std::vector<int32_t> truth;
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
          truth.push_back(right);
          said.samples.push_back(scores[0].second);
          for (size_t i = 0; i < kSelfRanked; ++i) {
            said.tokens.push_back(scores[i].second);
            said.log_probs.push_back(static_cast<float>(scores[i].first));
          }
        }
        tree.rank(first, said.ranked());
      }
      truth.resize(static_cast<size_t>(tree.tree().size()), -1);
      Acceptance acceptance;
      accept(tree.tree(), truth, &acceptance);
      if (refresh >= 20) {
        expected += tree.expected();
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
