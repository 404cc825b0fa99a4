// Trimmed trees against plain steps and against whole trees, on machines and texts that are made up.
#include "runtime/speculation/policy/tree_trimmer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <set>

namespace headrace {
namespace {

constexpr int32_t kRight = 1, kWrong = 2, kOther = 3;  // tokens; kOther is in no tree

struct TrimMachine {
  const char* name;
  std::function<double(int64_t nodes)> ms;
  double first_ms;     // more for the first step of a size
  int64_t most_nodes;  // of a tree
};

const TrimMachine kTrimMachines[] = {
    {"a GPU", [](int64_t n) { return n == 1 ? 5.0 : 5.8 + 0.01 * static_cast<double>(n); }, 6, 64},
    {"a GPU whose nodes are free", [](int64_t n) { return 8 + 0.002 * static_cast<double>(n); }, 6, 64},
    {"a CPU", [](int64_t n) { return 16 + 4.0 * static_cast<double>(n); }, 0, 16},
};

// Look-up that finds a chain of `depth` tokens, whose next one it believes in by `believed`, and which is right by
// `right`, and wrong guesses beside its first token.
struct LookedUpText {
  double believed, right;
  int64_t depth;
  int64_t guesses = 0;

  Tree tree() const {
    Tree tree;
    tree.reset(0);
    tree.scores = {0};
    for (int64_t i = 0; i < depth; ++i) {
      tree.add(kRight, static_cast<int32_t>(i));
      tree.scores.push_back(static_cast<float>(std::log(believed) * static_cast<double>(i + 1)));
    }
    for (int64_t i = 0; i < guesses; ++i) {
      tree.add(kWrong, 0);
      tree.scores.push_back(tree.scores.back());
    }
    return tree;
  }
};

enum class Steps { kPlain, kWhole, kTrimmed };

// Tokens a second over `tokens` tokens of the text.
double speed(const TrimMachine& machine, const LookedUpText& text, Steps steps, int tokens) {
  std::mt19937 random(7);
  TreeTrimmer trimmer;
  std::set<int64_t> seen;
  double ms = 0;
  int made = 0;
  while (made < tokens) {
    Tree tree = text.tree();
    tree.cut(steps == Steps::kPlain ? 1 : std::min(machine.most_nodes, tree.size()));
    if (steps == Steps::kTrimmed) trimmer.trim(&tree);
    const bool chain = std::bernoulli_distribution(text.right)(random);
    int accepted = 0;  // the chain comes first in the tree
    while (chain && accepted + 1 < std::min(tree.size(), text.depth + 1)) {
      if (accepted > 0 && !std::bernoulli_distribution(text.right)(random)) break;
      ++accepted;
    }
    double step = machine.ms(tree.size());
    if (seen.insert(tree.size()).second) step += machine.first_ms;
    ms += step;
    made += accepted + 1;
    if (steps == Steps::kTrimmed) trimmer.record(tree, chain ? kRight : kOther, step);
  }
  return 1000 * made / ms;
}

TEST(TreeTrimmer, LosesLittleWhereLookUpIsWrong) {
  for (const TrimMachine& machine : kTrimMachines) {
    for (const double believed : {0.1, 0.3, 0.6}) {
      const LookedUpText story = {.believed = believed, .right = believed / 8, .depth = 12, .guesses = 51};
      const double plain = speed(machine, story, Steps::kPlain, 512);
      EXPECT_GT(speed(machine, story, Steps::kTrimmed, 512), 0.98 * plain) << machine.name << " " << believed;
    }
  }
}

TEST(TreeTrimmer, LosesLittleOfWhatLookUpGains) {
  for (const TrimMachine& machine : kTrimMachines) {
    const LookedUpText quoted = {.believed = 0.9, .right = 0.92, .depth = 15};
    const double whole = speed(machine, quoted, Steps::kWhole, 512);
    EXPECT_GT(speed(machine, quoted, Steps::kTrimmed, 512), 0.97 * whole) << machine.name;
    EXPECT_GT(speed(machine, quoted, Steps::kTrimmed, 512), 1.5 * speed(machine, quoted, Steps::kPlain, 512))
        << machine.name;
  }
}

// On a CPU the unlikely nodes of a tree cost more than they bring.
TEST(TreeTrimmer, CutsWhatANodeDoesNotPayFor) {
  const LookedUpText quoted = {.believed = 0.5, .right = 0.5, .depth = 16, .guesses = 47};
  const double whole = speed(kTrimMachines[2], quoted, Steps::kWhole, 2048);
  EXPECT_GT(speed(kTrimMachines[2], quoted, Steps::kTrimmed, 2048), 2 * whole);
}

TEST(TreeTrimmer, TriesAgainWhenTheTextIsQuoted) {
  const LookedUpText guessed = {.believed = 0.5, .right = 0, .depth = 15};
  TreeTrimmer trimmer;
  int64_t nodes = 0;
  const auto step = [&](int32_t next) {
    Tree tree = guessed.tree();
    trimmer.trim(&tree);
    nodes = tree.size();
    trimmer.record(tree, next, nodes == 1 ? 5 : 8);
  };
  for (int i = 0; i < 100; ++i) step(kOther);
  EXPECT_EQ(nodes, 1);
  int steps = 0;
  for (; nodes == 1 && steps < 100; ++steps) step(kRight);
  EXPECT_LE(steps, 30);
}

// Whichever step it is: a size that is thought to be dear is not tried again.
TEST(TreeTrimmer, OneDisturbedStepDoesNotEndTheUseOfATree) {
  const LookedUpText quoted = {.believed = 0.9, .right = 0.9, .depth = 15};
  for (int disturbed = 0; disturbed < 20; ++disturbed) {
    TreeTrimmer trimmer;
    int64_t nodes = 0;
    for (int i = 0; i < 40; ++i) {
      Tree tree = quoted.tree();
      if (i % 4 == 1) tree.cut(1);  // where nothing is found
      trimmer.trim(&tree);
      if (i % 4 != 1) nodes = tree.size();
      trimmer.record(tree, kRight, (tree.size() == 1 ? 5 : 6) * (i == disturbed ? 20 : 1));
    }
    EXPECT_EQ(nodes, 16) << disturbed;
  }
}

TEST(TreeTrimmer, ATreeHasOneOfFewSizes) {
  std::set<int64_t> sizes;
  for (int64_t depth = 1; depth < 100; ++depth) {
    TreeTrimmer trimmer;
    const LookedUpText sure = {.believed = 0.999, .right = 1, .depth = depth};
    Tree tree = sure.tree();
    trimmer.trim(&tree);
    EXPECT_LE(tree.size(), depth + 1);
    EXPECT_EQ(tree.scores.size(), tree.tokens.size());
    EXPECT_EQ(tree.depths.size(), tree.tokens.size());
    sizes.insert(tree.size());
  }
  EXPECT_LE(sizes.size(), 12u);
  EXPECT_EQ(*sizes.rbegin(), 64);
}

}  // namespace
}  // namespace headrace
