// Guesses by look-up: what is found, what a tree of several continuations looks like, and that nothing is proposed that
// the text does not hold.
#include "runtime/draft/ngram/index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

// Letters stand for tokens.
NgramIndex index_of(const std::string& text) {
  NgramIndex index(static_cast<int64_t>(text.size()));
  for (const char c : text) index.append(c);
  return index;
}

std::string letters_to(const Tree& tree, int32_t node) {
  std::string path;
  for (; node > 0; node = tree.parents[static_cast<size_t>(node)])
    path += static_cast<char>(tree.tokens[static_cast<size_t>(node)]);
  return {path.rbegin(), path.rend()};
}

// The tree's paths, in the order in which its nodes were added: "x", "xy", …
std::vector<std::string> paths(const Tree& tree) {
  std::vector<std::string> out;
  for (int32_t node = 1; node < tree.size(); ++node) out.push_back(letters_to(tree, node));
  return out;
}

std::vector<std::string> proposed(const std::string& text, const NgramLimits& limits = {}) {
  Tree tree;
  index_of(text).propose(limits, &tree);
  EXPECT_EQ(tree.tokens[0], text.back());
  return paths(tree);
}

using Paths = std::vector<std::string>;

TEST(Ngram, NothingSeenNothingProposed) {
  EXPECT_EQ(proposed("a"), Paths());
  EXPECT_EQ(proposed("abcdef"), Paths());
}

TEST(Ngram, WhatFollowedThen) {
  // One token agrees: 1/5, then two, ...: 1 - (4/5)^2 each time
  EXPECT_EQ(proposed("abcdb"), (Paths{"c"}));
  // Two tokens agree, then three, …: 0.36, times 0.49, times 0.59, …
  EXPECT_EQ(proposed("abxyz, ab", {.nodes = 16, .depth = 12, .likelihood = 0.17}), (Paths{"x", "xy"}));
  EXPECT_EQ(proposed("abxyz, ab", {.nodes = 16, .depth = 12, .likelihood = 0.06}), (Paths{"x", "xy", "xyz", "xyz,"}));
  // The more agrees, the further it goes.
  EXPECT_EQ(proposed("abcdefghxyzuvw, abcdefgh").size(), 12u);
  EXPECT_EQ(proposed("abcdefghxyzuvw, abcdefgh").back(), "xyzuvw, abcd");
}

TEST(Ngram, APeriodGoesOnBeyondTheEnd) {
  EXPECT_EQ(proposed("abcabcabc").back(), "abcabcabcabc");
  EXPECT_EQ(proposed("aaaaaaaaa").back(), "aaaaaaaaaaaa");
}

TEST(Ngram, SeveralContinuationsAreATree) {
  // "cdef" agrees with both; "bcdef" with the first, which is the likelier for it.
  const Paths found = proposed("abcdefpq zycdefrs abcdef", {.nodes = 8, .depth = 2, .likelihood = 0.01});
  EXPECT_EQ(found, (Paths{"p", "pq", "r", "rs"}));
  // What was seen twice is likelier than what was seen once.
  EXPECT_EQ(proposed("xabm yabn zabm wab", {.nodes = 3, .depth = 1, .likelihood = 0.01}), (Paths{"m", "n"}));
}

// Of a context of one token that occurred n times, c times before this one: c / (n + 4). Of one of two tokens the rest
// goes by the shorter one.
TEST(Ngram, LikelihoodsByCountsAndLengths) {
  const auto likelihoods = [](const std::string& text) {
    Tree tree;
    index_of(text).propose({.nodes = 16, .depth = 1, .likelihood = 0.01}, &tree);
    std::map<std::string, double> found;
    for (int32_t node = 1; node < tree.size(); ++node)
      found[letters_to(tree, node)] = std::exp(tree.scores[static_cast<size_t>(node)]);
    return found;
  };
  auto found = likelihoods("am bm cm an m");  // 'm' was before ' ' three times: 3 / 7
  EXPECT_EQ(found.size(), 1u);
  EXPECT_NEAR(found[" "], 3.0 / 7, 1e-6);
  found = likelihoods("abx cby dby ab");  // "ab": x once of once; "b": x once, y twice of three times
  EXPECT_NEAR(found["x"], (1 + 4 * (1.0 / 7)) / 5, 1e-6);
  EXPECT_NEAR(found["y"], 4 * (2.0 / 7) / 5, 1e-6);
}

TEST(Ngram, LimitsHold) {
  const std::string text = "abcdefp abcdefq abcdefr abcdefs abcdef";
  for (const int64_t nodes : {1, 2, 7, 128})
    for (const int64_t depth : {1, 3, 40}) {
      Tree tree;
      index_of(text).propose({.nodes = nodes, .depth = depth, .likelihood = 0.0}, &tree);
      EXPECT_LE(tree.size(), nodes);
      EXPECT_LE(*std::max_element(tree.depths.begin(), tree.depths.end()), depth);
      if (depth == 40) {
        EXPECT_EQ(tree.size(), nodes);
      }
    }
}

TEST(Ngram, NothingIsProposedBeyondTheEndOfAText) {
  NgramIndex index(64);
  for (const char c : std::string("abcd")) index.append(c);
  index.append(-1);
  for (const char c : std::string("xyz abc")) index.append(c);
  Tree tree;
  index.propose({.nodes = 16, .depth = 12, .likelihood = 0}, &tree);
  EXPECT_EQ(paths(tree), Paths{"d"});
}

// What was cut off leaves no trace: the same text gives the same tree as an index that never knew more.
TEST(Ngram, CutTextIsForgotten) {
  const std::string text = "abcabdabcabeabcab", wrong = "xyzabcab";
  for (size_t kept = 1; kept <= text.size(); ++kept) {
    NgramIndex index(64);
    for (const char c : text.substr(0, kept)) index.append(c);
    for (const char c : wrong) index.append(c);
    index.cut(static_cast<int64_t>(kept));
    ASSERT_EQ(index.size(), static_cast<int64_t>(kept));
    for (const char c : text.substr(kept)) index.append(c);
    Tree tree;
    index.propose({}, &tree);
    EXPECT_EQ(paths(tree), proposed(text)) << kept;
  }
}

TEST(Ngram, TokensMayComeOneByOne) {
  const std::string text = "the cat sat on the mat and the cat sat on the";
  NgramIndex index(static_cast<int64_t>(text.size()));
  for (size_t length = 1; length <= text.size(); ++length) {
    index.append(text[length - 1]);
    Tree tree;
    index.propose({}, &tree);
    EXPECT_EQ(paths(tree), proposed(text.substr(0, length))) << length;
  }
}

// On made-up texts: each token of a proposed path followed the one before it somewhere, siblings differ, parents come
// first; and where the last token occurred before, something is proposed.
TEST(Ngram, OnlyWhatTheTextHolds) {
  for (const int32_t letters : {5, 9, 30}) {
    const std::vector<int32_t> ids = testing::made_up_ids(600, letters, static_cast<uint32_t>(letters));
    NgramIndex index(600);
    std::string text;
    for (const int32_t id : ids) {
      index.append(static_cast<int32_t>('a' + id));
      text += static_cast<char>('a' + id);
      Tree tree;
      index.propose({.nodes = 24, .depth = 6, .likelihood = 0.0}, &tree);
      const std::string last = text.substr(text.size() - 1);
      const bool seen = text.find(last) + 1 < text.size();
      ASSERT_EQ(tree.size() > 1, seen) << text;
      Paths found = paths(tree);
      for (const std::string& path : found) {
        const std::string all = text + path;
        ASSERT_LT(all.find(all.substr(all.size() - 2)), all.size() - 2) << path << " after " << text;
      }
      std::sort(found.begin(), found.end());
      ASSERT_EQ(std::unique(found.begin(), found.end()), found.end());
      for (int32_t node = 1; node < tree.size(); ++node) ASSERT_LT(tree.parents[static_cast<size_t>(node)], node);
    }
  }
}

}  // namespace
}  // namespace headrace
