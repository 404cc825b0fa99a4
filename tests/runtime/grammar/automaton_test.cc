#include "runtime/grammar/automaton.h"

#include <gtest/gtest.h>

#include "tests/runtime/grammar/accepts.h"

namespace headrace {
namespace {

using testing::accepts;

// "a" 2 to 3 times, then "b".
Grammar repeated(int32_t min, int32_t max) {
  Grammar g;
  g.start = g.loop(g.literal("a", kReturnNode), min, max, g.literal("b", kReturnNode));
  return g;
}

TEST(Automaton, CountsALoop) {
  const Grammar g = repeated(2, 3);
  EXPECT_FALSE(accepts(g, "ab"));
  EXPECT_TRUE(accepts(g, "aab"));
  EXPECT_TRUE(accepts(g, "aaab"));
  EXPECT_FALSE(accepts(g, "aaaab"));
  EXPECT_FALSE(accepts(g, "aa"));
  EXPECT_FALSE(accepts(g, "aabb"));
}

TEST(Automaton, HasOneStateForCountsThatAreAllTheSame) {
  const Grammar g = repeated(2, -1);
  Automaton automaton(g);
  const GrammarState two = automaton.after(automaton.start(), "aa");
  EXPECT_EQ(automaton.after(two, "aaaa"), two);
  EXPECT_NE(automaton.after(automaton.start(), "a"), two);
}

TEST(Automaton, NestsAsDeepAsTheText) {
  Grammar g;  // brackets
  const int32_t inner = g.later();
  g.settle(inner, g.split({g.literal("x", kReturnNode), g.literal("(", g.call(inner, g.literal(")", kReturnNode)))}));
  g.start = inner;
  for (const size_t depth : {0, 1, 7, 300}) {
    const std::string text = std::string(depth, '(') + "x" + std::string(depth, ')');
    EXPECT_TRUE(accepts(g, text)) << depth;
    EXPECT_FALSE(accepts(g, text + ")")) << depth;
    EXPECT_FALSE(accepts(g, "(" + text)) << depth;
  }
}

TEST(Grammar, DropsWhatNeverEnds) {
  Grammar g;
  const int32_t endless = g.later();
  g.settle(endless, g.literal("a", endless));
  const int32_t ends = g.literal("ab", kReturnNode);
  g.start = g.split({endless, ends});
  ASSERT_TRUE(drop_endless(&g));
  EXPECT_TRUE(accepts(g, "ab"));
  Automaton automaton(g);
  EXPECT_EQ(automaton.after(automaton.start(), "aa"), kDeadState);
  g.start = endless;
  EXPECT_FALSE(drop_endless(&g));
}

TEST(Grammar, FindsWhatRecursAtOnce) {
  Grammar g;
  const int32_t node = g.later();
  g.settle(node, g.split({g.literal("a", kReturnNode), g.call(node, g.literal("b", kReturnNode))}));
  EXPECT_TRUE(recurs_at_once(g));
  Grammar fine;
  const int32_t other = fine.later();
  fine.settle(other, fine.split({fine.literal("a", kReturnNode), fine.literal("b", fine.call(other, kReturnNode))}));
  EXPECT_FALSE(recurs_at_once(fine));
}

TEST(Grammar, BeginsBehindTheThinking) {
  Grammar g;
  g.start = g.literal("{}", kReturnNode);
  const Grammar inside = behind_thinking(g, "", "</think>"), may = behind_thinking(g, "<think>", "</think>");
  EXPECT_TRUE(accepts(inside, "let me <</think>{}"));
  EXPECT_FALSE(accepts(inside, "{}"));
  EXPECT_FALSE(accepts(inside, "a</think>{}</think>{}"));
  EXPECT_TRUE(accepts(inside, "</</think>{}"));
  EXPECT_TRUE(accepts(may, "{}"));
  EXPECT_TRUE(accepts(may, "\n<think>{ no </think>{}"));
  EXPECT_FALSE(accepts(may, "no</think>{}"));
}

}  // namespace
}  // namespace headrace
