// Guesses by look-up: what is found, what a tree of several continuations looks like, and that nothing is proposed that
// the text does not hold.
#include "runtime/draft/ngram/index.h"

#include <gtest/gtest.h>

#include <algorithm>
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

std::string path_to(const Tree& tree, int32_t node) {
  std::string path;
  for (; node > 0; node = tree.parents[static_cast<size_t>(node)])
    path += static_cast<char>(tree.tokens[static_cast<size_t>(node)]);
  return {path.rbegin(), path.rend()};
}

// The tree's paths, in the order in which its nodes were added: "x", "xy", …
std::vector<std::string> paths(const Tree& tree) {
  std::vector<std::string> out;
  for (int32_t node = 1; node < tree.size(); ++node) out.push_back(path_to(tree, node));
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
  EXPECT_EQ(proposed("abcdb"), Paths());  // one token alone says nothing
}

TEST(Ngram, WhatFollowedThen) {
  // Two tokens agree, then three, …: 4/16, times 9/21, times 16/28, …
  EXPECT_EQ(proposed("abxyz, ab", {.nodes = 16, .depth = 12, .likelihood = 0.1}), (Paths{"x", "xy"}));
  EXPECT_EQ(proposed("abxyz, ab", {.nodes = 16, .depth = 12, .likelihood = 0.04}), (Paths{"x", "xy", "xyz", "xyz,"}));
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

// On made-up texts: a proposed path is what followed a place where at least two tokens agree, siblings differ, parents
// come first; and where such a place is among the latest, something is proposed.
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
      if (text.size() < 3) continue;
      bool seen = false;
      const std::string last = text.substr(text.size() - 2);
      for (size_t at = 0; at + 2 < text.size(); ++at) seen |= text.compare(at, 2, last) == 0;
      ASSERT_EQ(tree.size() > 1, seen) << text;
      Paths found = paths(tree);
      for (const std::string& path : found)
        ASSERT_LT((text + path).find(last + path), text.size() - 2) << path << " after " << text;
      std::sort(found.begin(), found.end());
      ASSERT_EQ(std::unique(found.begin(), found.end()), found.end());
      for (int32_t node = 1; node < tree.size(); ++node) ASSERT_LT(tree.parents[static_cast<size_t>(node)], node);
    }
  }
}

}  // namespace
}  // namespace headrace
