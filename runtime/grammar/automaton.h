// Walks a grammar byte by byte. A state is a set of stacks, which has a number: equal sets have equal numbers, and what
// follows a state and a byte is computed once. So states are small, compare and hash as integers, and a tree's nodes
// can each have their own.
//
// Owns all states, which last as long as it does. Borrows the grammar. Thread: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/grammar/grammar.h"

namespace headrace {

using GrammarState = int32_t;
constexpr GrammarState kDeadState = -1;  // no text of the grammar begins so

// A stack, from its top: the node that waits for a byte or is returned to, and what is below it.
struct GrammarStack {
  int32_t node = 0;
  int32_t count = 0;  // of a loop: how often its body has begun; kFollows: the node follows a call
  int32_t below = 0;  // a stack
  bool operator==(const GrammarStack&) const = default;
};
constexpr int32_t kFollows = -1;
// Two stacks are empty: that of the text, and the bottom of a part of a stack, whose rest is not known (masks.h).
constexpr int32_t kTextEnd = 0, kPartEnd = 1;

class Automaton {
 public:
  // The grammar must outlive this, and recurs only behind a byte.
  explicit Automaton(const Grammar& grammar);

  GrammarState start() const { return start_; }
  // The state after a byte; kDeadState of kDeadState.
  GrammarState after(GrammarState state, unsigned char byte);
  GrammarState after(GrammarState state, std::string_view bytes);
  bool complete(GrammarState state) const { return has(state, kTextEnd); }  // the text may end here
  bool part_ends(GrammarState state) const { return has(state, kPartEnd); }
  // The stacks of a state, without those that are empty. Valid until the next state is made.
  std::span<const int32_t> stacks(GrammarState state) const { return states_[static_cast<size_t>(state)].stacks; }
  const GrammarStack& stack(int32_t index) const { return stacks_[static_cast<size_t>(index)]; }
  const GrammarNode& node(int32_t index) const { return grammar_.nodes[static_cast<size_t>(index)]; }
  int32_t push(const GrammarStack& stack);   // the stack's number
  GrammarState state_of(int32_t stack);      // of one stack whose top waits for a byte
  GrammarState state_behind(int32_t below);  // once what was above `below` has ended; not of an empty stack

 private:
  struct State {
    std::vector<int32_t> stacks;
    bool text_ends = false, part_ends = false;
    std::unique_ptr<std::array<GrammarState, 256>> after;  // kUnknown: not computed yet
  };
  struct HashStack {
    size_t operator()(const GrammarStack& stack) const;
  };
  struct HashStacks {
    size_t operator()(const std::vector<int32_t>& stacks) const;
  };

  bool has(GrammarState state, int32_t end) const;
  void enter(int32_t node, int32_t below);
  void enter_loop(int32_t node, int32_t count, int32_t below);
  void leave(int32_t below);
  void begin();           // a new set of stacks
  GrammarState finish();  // its state

  const Grammar& grammar_;
  std::vector<GrammarStack> stacks_;
  std::unordered_map<GrammarStack, int32_t, HashStack> stack_numbers_;
  std::vector<State> states_;
  std::unordered_map<std::vector<int32_t>, GrammarState, HashStacks> state_numbers_;
  GrammarState start_ = kDeadState;
  // Of the set that is being made: its stacks, and the nodes entered so far with what is below.
  std::vector<int32_t> made_;
  std::vector<GrammarStack> entered_;
};

}  // namespace headrace
