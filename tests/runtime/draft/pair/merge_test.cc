// Two trees become one: the likeliest nodes of both, each path once.
#include "runtime/draft/pair/merge.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

namespace headrace {
namespace {

Tree tree_of(const std::vector<std::pair<int32_t, int32_t>>& nodes, const std::vector<float>& scores) {
  Tree tree;
  tree.reset(7);
  tree.scores = {0};
  for (const auto& [token, parent] : nodes) tree.add(token, parent);
  tree.scores.insert(tree.scores.end(), scores.begin(), scores.end());
  return tree;
}

std::vector<int32_t> path_to(const Tree& tree, int32_t node) {
  std::vector<int32_t> path;
  for (; node > 0; node = tree.parents[static_cast<size_t>(node)]) {
    path.insert(path.begin(), tree.tokens[static_cast<size_t>(node)]);
  }
  return path;
}

std::map<std::vector<int32_t>, float> scores_of(const Tree& tree) {
  std::map<std::vector<int32_t>, float> scores;
  for (int32_t node = 1; node < tree.size(); ++node) {
    EXPECT_TRUE(scores.emplace(path_to(tree, node), tree.scores[static_cast<size_t>(node)]).second) << "a path twice";
    EXPECT_LT(tree.parents[static_cast<size_t>(node)], node);
  }
  return scores;
}

TEST(MergeTrees, ASharedPathIsOneWithTheBetterScore) {
  const Tree head = tree_of({{1, 0}, {2, 1}, {3, 0}}, {-1, -2, -3}),
             found = tree_of({{1, 0}, {2, 1}, {9, 2}}, {-0.5f, -4, -5});
  Tree out;
  merge_trees(head, found, 100, &out);
  EXPECT_EQ(scores_of(out),
            (std::map<std::vector<int32_t>, float>{{{1}, -0.5f}, {{1, 2}, -2}, {{1, 2, 9}, -5}, {{3}, -3}}));
}

TEST(MergeTrees, TheLikeliestStayWhereThereIsNoRoom) {
  const Tree head = tree_of({{1, 0}, {2, 1}}, {-1, -6}), found = tree_of({{4, 0}, {5, 1}, {6, 2}}, {-2, -2, -3});
  Tree out;
  merge_trees(head, found, 4, &out);
  EXPECT_EQ(scores_of(out), (std::map<std::vector<int32_t>, float>{{{1}, -1}, {{4}, -2}, {{4, 5}, -2}}));
  merge_trees(head, found, 1, &out);
  EXPECT_EQ(out.size(), 1);
}

TEST(MergeTrees, OneMayBeItsRootAlone) {
  const Tree head = tree_of({{1, 0}, {2, 1}}, {-1, -6}), nothing = tree_of({}, {});
  Tree out;
  merge_trees(head, nothing, 64, &out);
  EXPECT_EQ(out.tokens, head.tokens);
  EXPECT_EQ(out.scores, head.scores);
  merge_trees(nothing, head, 64, &out);
  EXPECT_EQ(out.tokens, head.tokens);
}

// A child that one tree ranks above what the other says of its parent never outlives it.
TEST(MergeTrees, WhateverIsKeptHasItsParent) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    Tree trees[2];
    for (Tree& tree : trees) {
      tree.reset(7);
      tree.scores = {0};
      for (int i = 0; i < 40; ++i) {
        const auto parent = static_cast<int32_t>(random() % static_cast<uint32_t>(tree.size()));
        const auto token = static_cast<int32_t>(random() % 1000 * 2 + (&tree == trees ? 0 : random() % 2));
        tree.add(token, parent);
        tree.scores.push_back(tree.scores[static_cast<size_t>(parent)] - static_cast<float>(random() % 3));
      }
    }
    Tree out;
    merge_trees(trees[0], trees[1], 30, &out);
    EXPECT_EQ(out.size(), 30);
    for (int32_t node = 1; node < out.size(); ++node) {
      const size_t parent = static_cast<size_t>(out.parents[static_cast<size_t>(node)]);
      EXPECT_GE(out.scores[parent], out.scores[static_cast<size_t>(node)]);
    }
  }
}

}  // namespace
}  // namespace headrace
