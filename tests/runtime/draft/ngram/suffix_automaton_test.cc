// The automaton against the text itself: every context, what followed it and how often, within linear memory; and that
// cut tokens leave no trace.
#include "runtime/draft/ngram/suffix_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "tests/support/session_fixture.h"

namespace headrace {
namespace {

using Text = std::vector<int32_t>;
using Counts = std::map<int32_t, int32_t>;

SuffixAutomaton automaton_of(const Text& text, int64_t most_tokens) {
  SuffixAutomaton automaton(most_tokens);
  for (const int32_t token : text) automaton.append(token);
  return automaton;
}

Counts followed(const SuffixAutomaton& automaton, int32_t state) {
  Counts counts;
  for (int32_t edge = automaton.state(state).first_edge; edge >= 0; edge = automaton.edge(edge).next) {
    EXPECT_EQ(automaton.edge(edge).state, state);
    EXPECT_TRUE(counts.emplace(automaton.edge(edge).token, automaton.edge(edge).count).second) << "twice";
  }
  return counts;
}

// What followed the `length` tokens before `end`, by comparing them with the text everywhere.
Counts followed(const Text& text, size_t end, size_t length) {
  Counts counts;
  for (size_t next = length; next < text.size(); ++next) {
    if (std::equal(text.begin() + static_cast<std::ptrdiff_t>(next - length),
                   text.begin() + static_cast<std::ptrdiff_t>(next),
                   text.begin() + static_cast<std::ptrdiff_t>(end - length)))
      ++counts[text[next]];
  }
  return counts;
}

Text random_text(int64_t size, int32_t letters) {
  return testing::made_up_ids(size, letters + 3, static_cast<uint32_t>(size + letters));
}

TEST(SuffixAutomaton, EveryContextHasWhatFollowedIt) {
  for (const int32_t letters : {3, 8, 40}) {
    const Text text = random_text(300, letters);
    const SuffixAutomaton automaton = automaton_of(text, 300);
    for (size_t end = 1; end <= text.size(); ++end) {
      SuffixAutomaton::Match match;
      for (size_t length = 1; length <= std::min<size_t>(end, 5); ++length) {
        match = {};
        for (size_t i = end - length; i < end; ++i) match = automaton.after(match, text[i]);
        ASSERT_EQ(match.length, static_cast<int32_t>(length));
        ASSERT_EQ(followed(automaton, match.state), followed(text, end, length)) << "at " << end << ", " << length;
        int32_t sum = 0;
        for (const auto& [token, count] : followed(automaton, match.state)) sum += count;
        ASSERT_EQ(automaton.state(match.state).followed, sum);
      }
    }
  }
}

// A match is the longest suffix of the context that the text holds, and its end is the longest that occurred before.
TEST(SuffixAutomaton, MatchesAreTheLongest) {
  const Text text = random_text(200, 4), other = random_text(200, 5);  // with a letter that the text lacks
  const SuffixAutomaton automaton = automaton_of(text, 200);
  const auto holds = [&](const Text& in, size_t end, size_t length) {
    const auto begin = other.begin() + static_cast<std::ptrdiff_t>(end - length);
    return std::search(in.begin(), in.end(), begin, other.begin() + static_cast<std::ptrdiff_t>(end)) != in.end();
  };
  SuffixAutomaton::Match match;
  for (size_t end = 1; end <= other.size(); ++end) {
    match = automaton.after(match, other[end - 1]);
    size_t longest = 0;
    while (longest < end && holds(text, end, longest + 1)) ++longest;
    ASSERT_EQ(match.length, static_cast<int32_t>(longest)) << end;
  }
  for (size_t size = 1; size <= text.size(); ++size) {
    const Text begun(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(size));
    size_t longest = 0;
    while (longest + 1 < size &&
           std::search(begun.begin(), begun.end() - 1, begun.end() - static_cast<std::ptrdiff_t>(longest + 1),
                       begun.end()) != begun.end() - 1)
      ++longest;
    ASSERT_EQ(automaton_of(begun, 200).end().length, static_cast<int32_t>(longest)) << size;
  }
}

// The texts with the most states (abbb...b), the most edges (abbb...bc), the longest chain of links, and others.
std::vector<Text> hard_texts(int32_t size) {
  Text most_states(static_cast<size_t>(size), 1), most_edges = most_states, period, one(static_cast<size_t>(size), 7);
  most_states[0] = most_edges[0] = 0;
  most_edges.back() = 2;
  for (int32_t i = 0; i < size; ++i) period.push_back(i % 50);
  return {most_states, most_edges, period, one, random_text(size, 2), random_text(size, 5000)};
}

TEST(SuffixAutomaton, MemoryIsLinear) {
  for (const Text& text : hard_texts(20'000)) {
    const SuffixAutomaton automaton = automaton_of(text, 20'000);  // its CHECKs hold: it never grows
    EXPECT_LE(automaton.states(), 2 * 20'000);
    EXPECT_LE(automaton.edges(), 3 * 20'000);
  }
  EXPECT_LT(SuffixAutomaton::bytes(131'072), 140u * 131'072);
  EXPECT_GE(
      SuffixAutomaton::bytes(131'072),
      (4u + 2 * sizeof(SuffixAutomaton::State) + 3 * sizeof(SuffixAutomaton::Edge) + 4 * sizeof(int32_t)) * 131'072);
}

void expect_same(const SuffixAutomaton& a, const SuffixAutomaton& b) {
  ASSERT_TRUE(std::equal(a.text().begin(), a.text().end(), b.text().begin(), b.text().end()));
  ASSERT_EQ(a.states(), b.states());
  ASSERT_EQ(a.edges(), b.edges());
  for (int32_t i = 0; i < a.states(); ++i) {
    const SuffixAutomaton::State &x = a.state(i), &y = b.state(i);
    ASSERT_TRUE(x.length == y.length && x.link == y.link && x.first_edge == y.first_edge &&
                x.last_edge == y.last_edge && x.followed == y.followed)
        << "state " << i;
  }
  for (int32_t i = 0; i < a.edges(); ++i) {
    const SuffixAutomaton::Edge &x = a.edge(i), &y = b.edge(i);
    ASSERT_TRUE(x.state == y.state && x.token == y.token && x.target == y.target && x.next == y.next &&
                x.count == y.count)
        << "edge " << i;
    ASSERT_EQ(a.after({x.state, a.state(x.state).length}, x.token).state, x.target);  // it is found
  }
  ASSERT_EQ(a.end().state, b.end().state);
}

// Of the many tokens the automaton keeps no way back; it is built again.
TEST(SuffixAutomaton, CutTokensLeaveNoTrace) {
  for (const Text& text : hard_texts(6000)) {
    for (const size_t kept : {size_t{0}, size_t{1}, size_t{1500}, size_t{5500}, size_t{5999}, size_t{6000}}) {
      SuffixAutomaton automaton = automaton_of(text, 6000);
      automaton.cut(static_cast<int64_t>(kept));
      const Text begun(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(kept));
      expect_same(automaton, automaton_of(begun, 6000));
      if (HasFatalFailure()) FAIL() << kept << " tokens kept";
    }
  }
}

// Other tokens than those that were cut, again and again, as after refreshes.
TEST(SuffixAutomaton, ItGrowsAndIsCutInTurn) {
  const Text text = random_text(2000, 12), wrong = random_text(40, 12);
  SuffixAutomaton automaton(2100);
  for (size_t i = 0; i < text.size(); ++i) {
    automaton.append(text[i]);
    if (i % 13 != 0) continue;
    for (size_t n = 0; n < i % 40; ++n) automaton.append(wrong[n]);
    automaton.cut(static_cast<int64_t>(i + 1));
  }
  expect_same(automaton, automaton_of(text, 2100));
}

}  // namespace
}  // namespace headrace
